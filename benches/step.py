"""What one message costs each node: bytecodes and calls of a put to its confirm, of a get, an ack.

    python benches/step.py [--count 40] [--path DIR] [--where put master]

Three whole nodes with their stores (LMDB) in this process, and a handle on a mirror; only sockets,
threads and clocks are played: what one node sends another has next, rounds are called in turn, and
time goes on when nothing is left to do. So each run takes the same steps, and counting is exact:
bytecodes of Python, calls of Python functions, calls of C; what is played is not counted. Printed
is the mean of all messages, up to the last word that the nodes say about one (`mark_delay_ms`).
The user's own calls are a row of their own. Compare runs of one version of CPython only: from 3.12
on more is counted as a call of C. With `--where` it names the functions in which the
bytecodes of one row are.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from types import CodeType, FrameType
from typing import Any

from mirrorq import Confirmation, MirroredQueue, Settlement, clock
from mirrorq.api.receiver import Demand
from mirrorq.node import node as node_module
from mirrorq.node.node import Node
from mirrorq.transport.inbound import Connected, Inbound, PeerMessage

NAMES = ("master", "producer", "other")
"""In the order of the ring. The handle is on `producer`."""
BODY = b"x" * 100
START_MS = 1_000_000
WALL_US = 1_700_000_000_000_000
WAIT_S = 60.0
SETTLE_MS = 30
"""Of a message; longer than `mark_delay_ms`."""
WARM_UP = 20
SET_UP_MS = 200_000
"""On the played clock."""


class Loop:
    """In place of a node's sockets: what is sent to a peer is there at its next round."""

    part_bytes_max = 1 << 30
    dropped_count = garbage_count = connection_count = 0

    def __init__(self, name: str, incarnation: int, *_: object) -> None:
        self.name = name
        self.endpoint = f"tcp://127.0.0.1:{7400 + NAMES.index(name)}"
        self.peers: dict[str, str] = {}
        self.inbox: list[Inbound] = []
        self._incarnation = incarnation
        LOOPS[name] = self

    @property
    def peer_count(self) -> int:
        return len(self.peers)

    def connect_peer(self, peer: str, endpoint: str) -> None:
        if peer not in self.peers:
            self.peers[peer] = endpoint
            self.inbox.append(Connected(peer))

    def forget_peer(self, peer: str) -> None:
        self.peers.pop(peer, None)

    def send(self, peer: str, channel: int, parts: list[bytes]) -> bool:
        there = LOOPS.get(peer)
        if there is None or peer not in self.peers:
            return False
        data = [bytes(part) for part in parts]
        there.inbox.append(PeerMessage(self.name, self._incarnation, channel, data))
        return True

    def takes(self, _: object) -> bool:
        return True

    def takes_turns(self, _: int) -> bool:
        return False

    def poll(self, _: int) -> list[Inbound]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def probe(self, peer: str) -> None:
        pass

    def flush(self) -> None:
        pass

    def wake(self) -> None:
        pass


LOOPS: dict[str, Loop] = {}


class Counts:
    """What ran while it was on: of this thread."""

    def __init__(self, *, by_function: bool = False) -> None:
        self.rounds = self.bytecodes = self.calls = self.c_calls = 0
        self.where: Counter[str] = Counter()
        self._by_function = by_function

    def run(self, function: Callable[[], None]) -> None:
        self.rounds += 1
        _watch(self, function)

    def note(self, code: CodeType) -> None:
        """A bytecode of this function is next."""
        self.bytecodes += 1
        if self._by_function:
            self.where[f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1


def _traced(counts: Counts, function: Callable[[], None]) -> None:
    """Call it, and count. For CPython 3.11."""

    def on_profile(_: FrameType, event: str, __: Any) -> None:
        counts.c_calls += event == "c_call"

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None  # what is played costs nothing
        counts.calls += 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return on_opcode

    def on_opcode(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            counts.note(frame.f_code)
        return on_opcode

    sys.setprofile(on_profile)
    sys.settrace(on_call)
    try:
        function()
    finally:
        sys.settrace(None)
        sys.setprofile(None)


class _Monitor:
    """The same for later versions, where `sys.settrace` loses a function's first bytecodes. It is
    on from the first count to the end of the process: to turn it off and on is what costs."""

    def __init__(self) -> None:
        self._counts: Counts | None = None
        self._thread = 0

    def __call__(self, counts: Counts, function: Callable[[], None]) -> None:
        if not self._thread:
            self._begin()
        self._counts = counts
        try:
            function()
        finally:
            self._counts = None

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        monitoring = sys.monitoring
        events = monitoring.events
        handlers = {
            events.PY_START: self._on_call,
            events.PY_RESUME: self._on_call,
            events.INSTRUCTION: self._on_opcode,
            events.C_RETURN: self._on_c,
            events.C_RAISE: self._on_c,
        }
        monitoring.use_tool_id(monitoring.PROFILER_ID, "benches/step.py")
        for event, handler in handlers.items():
            monitoring.register_callback(monitoring.PROFILER_ID, event, handler)
        # Those of C come with the event of all calls.
        wanted = events.PY_START | events.PY_RESUME | events.INSTRUCTION | events.CALL
        monitoring.set_events(monitoring.PROFILER_ID, wanted)

    def _counted(self) -> Counts | None:
        """What counts now; nothing at the end of the process, when modules are taken apart."""
        if self._counts is None or threading.get_ident() != self._thread:
            return None
        return self._counts

    def _on_call(self, code: CodeType, _: int) -> Any:
        counts = self._counted()
        if counts is None:
            return None
        if code.co_filename == __file__:
            return sys.monitoring.DISABLE  # what is played costs nothing
        counts.calls += 1
        return None

    def _on_opcode(self, code: CodeType, _: int) -> Any:
        counts = self._counted()
        if counts is None:
            return None
        if code.co_filename == __file__:
            return sys.monitoring.DISABLE
        counts.note(code)
        return None

    def _on_c(self, _: CodeType, __: int, ___: object, ____: object) -> None:
        counts = self._counted()
        if counts is not None:
            counts.c_calls += 1


_watch: Callable[[Counts, Callable[[], None]], None] = (
    _Monitor() if sys.version_info >= (3, 12) else _traced
)


class Cluster:
    """The nodes, stepped in turn by this thread."""

    def __init__(self, path: Path) -> None:
        self.now_ms = START_MS
        self.counts: dict[str, Counts] | None = None
        """By node, while rounds are counted."""
        clock.now_ms = lambda: self.now_ms
        clock.wall_us = lambda: WALL_US + 1000 * self.now_ms
        vars(node_module).update(Transport=Loop, begin_thread=lambda _: None)
        secrets.randbits = lambda _: 1
        peers = {name: f"tcp://127.0.0.1:{7400 + at}" for at, name in enumerate(NAMES)}
        self.nodes = {name: Node(name, path=path / name, peers=peers) for name in NAMES}

    def run(self, duration_ms: int) -> None:
        """Let so much time pass, and everything happen that is due in it."""
        end_ms = self.now_ms + duration_ms
        while True:
            while self._has_run_all():
                pass
            wake_ms = self.now_ms + min(self._timeout_ms(name) for name in NAMES)
            if wake_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = wake_ms

    def _timeout_ms(self, name: str) -> int:
        return 0 if LOOPS[name].inbox else self.nodes[name]._driver._timeout_ms()

    def _has_run_all(self) -> bool:
        """A round of each node that has something to do; whether there was one."""
        ready = [name for name in NAMES if self._timeout_ms(name) == 0]
        for name in ready:
            self._round(name)
        return bool(ready)

    def _round(self, name: str) -> None:
        if self.counts is None:
            self.nodes[name]._driver._round()
        else:
            self.counts[name].run(self.nodes[name]._driver._round)

    def while_running(self, function: Callable[[], Any]) -> Any:
        """The result of a call that waits for the nodes."""
        found: list[Any] = []
        caller = threading.Thread(target=lambda: found.append(function()), daemon=True)
        caller.start()
        while caller.is_alive():
            self.run(1)
            caller.join(0.001)
        return found[0]

    def measure(self, act: Callable[[], None], *, by_function: bool) -> dict[str, Counts]:
        """What an act of the user costs it, and each node. Away from the beat of heartbeats."""
        beat_ms = self.nodes["master"].config.heartbeat_ms
        if self.now_ms % beat_ms + 2 * SETTLE_MS > beat_ms:
            self.run(beat_ms)
        counts = {name: Counts(by_function=by_function) for name in (*NAMES, "user")}
        counts["user"].run(act)
        self.counts = counts
        self.run(SETTLE_MS)
        self.counts = None
        return counts

    def close(self) -> None:
        for node in self.nodes.values():
            node._store.close()


class User:
    """Puts, gets and acks through one handle."""

    def __init__(self, cluster: Cluster, handle: MirroredQueue) -> None:
        self._cluster = cluster
        self._handle = handle
        self._confirmation: Confirmation | None = None
        self._settlement: Settlement | None = None
        self._demand: Demand | None = None

    def put(self) -> None:
        self._confirmation = self._handle.put(BODY)

    def check_put(self) -> None:
        assert self._confirmation is not None
        assert self._confirmation.done()

    def get(self) -> None:
        """As `MirroredQueue.get`, which does not return before the message is there."""
        self._demand = Demand(1)
        self._handle._handle.receiver.want(self._demand)

    def ack(self) -> None:
        assert self._demand is not None
        found: list[Any] = []
        self._handle._handle.receiver.take_one(found)
        self._handle._handle.receiver.unwant(self._demand)
        self._settlement = found[0].ack()

    def check_ack(self) -> None:
        assert self._settlement is not None
        assert self._settlement.done()


def rows(path: Path, count: int, *, by_function: bool) -> dict[str, list[dict[str, Counts]]]:
    """Of each message: what a put, a get and an ack cost."""
    cluster = Cluster(path)
    cluster.run(5000)
    declared = cluster.while_running(lambda: cluster.nodes["master"].queue("q", timeout=WAIT_S))
    cluster.run(1000)
    assert declared.status is not None
    handle = cluster.while_running(lambda: cluster.nodes["producer"].queue("q", timeout=WAIT_S))
    # How long that took depends on threads; from here on nothing does.
    cluster.run(START_MS + SET_UP_MS - cluster.now_ms)
    user = User(cluster, handle)
    found: dict[str, list[dict[str, Counts]]] = {"put": [], "get": [], "ack": []}
    for number in range(WARM_UP + count):
        each = {"put": cluster.measure(user.put, by_function=by_function)}
        user.check_put()
        each["get"] = cluster.measure(user.get, by_function=by_function)
        each["ack"] = cluster.measure(user.ack, by_function=by_function)
        user.check_ack()
        if number >= WARM_UP:
            for kind, counts in each.items():
                found[kind].append(counts)
    cluster.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--where", nargs=2, metavar=("KIND", "NODE"), default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        found = rows(Path(folder), arguments.count, by_function=arguments.where is not None)
    print(f"{'':10}{'':10}{'rounds':>8}{'bytecodes':>11}{'calls':>11}{'C calls':>11}")
    for kind, messages in found.items():
        for name in (*NAMES, "user"):
            each = [counts[name] for counts in messages]
            rounds, *others = (mean(getattr(one, of) for one in each) for of in FIELDS)
            print(
                f"{kind:10}{name:10}{rounds:8.1f}" + "".join(f"{count:11.0f}" for count in others)
            )
    for name in NAMES:
        both = sum(counts[name].bytecodes for kind in ("get", "ack") for counts in found[kind])
        print(f"get + ack {name:10}{both / arguments.count:19.0f}")
    if arguments.where is not None:
        kind, name = arguments.where
        where: Counter[str] = Counter()
        for counts in found[kind]:
            where += counts[name].where
        for place, bytecodes in where.most_common():
            print(f"{bytecodes / arguments.count:10.1f}  {place}")


FIELDS = ("rounds", "bytecodes", "calls", "c_calls")

if __name__ == "__main__":
    main()
