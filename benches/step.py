"""What one message costs each node: bytecodes and calls of a put to its confirm, of a get, an ack.

    python benches/step.py [--count 40] [--path DIR] [--by function | --by round]

Three whole nodes with their stores (LMDB) in this process, and a handle on a mirror; only sockets,
threads and clocks are played: what one node sends another has next, rounds are called in turn, and
time goes on when nothing is left to do. So each run takes the same steps, and counting is exact:
bytecodes of Python, calls of Python functions, calls of C; what is played is not counted. Printed
is the mean of all messages, up to the last word that the nodes say about one (`mark_delay_ms`).
The user's own calls are a row of their own. Compare runs of one version of CPython only: from 3.12
on more is counted as a call of C.

`--by function` names where the bytecodes of each node are: by itself, with all that it calls, and
how often it is called. `--by round` lists the rounds of the last message: what each was given,
what came out of it, what it cost. One that came to nothing says so.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from types import CodeType, FrameType
from typing import Any

from attrs import define, field

from mirrorq import Confirmation, MirroredQueue, Settlement, clock
from mirrorq.api.receiver import Demand
from mirrorq.config import Config
from mirrorq.engine.events import EngineEffects, EngineEvent
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
    has_rails = False

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

    def close(self) -> None:
        """There is no socket."""

    abandon = close


LOOPS: dict[str, Loop] = {}


class Counts:
    """What ran while it was on: of this thread."""

    def __init__(self, *, by_function: bool = False) -> None:
        self.rounds = self.bytecodes = self.calls = self.c_calls = 0
        self.own: Counter[CodeType] = Counter()
        self.whole: Counter[CodeType] = Counter()
        """With what it has called."""
        self.called: Counter[CodeType] = Counter()
        self._by_function = by_function
        self._frame: FrameType | None = None
        self._run_length = 0
        """Bytecodes of that frame which are not yet in the tables."""

    def run(self, function: Callable[[], None]) -> None:
        self.rounds += 1
        _watch(self, function)
        self._note_run()

    def note_call(self, code: CodeType) -> None:
        self.calls += 1
        if self._by_function:
            self.called[code] += 1

    def note(self, frame: FrameType) -> None:
        """A bytecode of this frame is next."""
        self.bytecodes += 1
        if self._by_function:
            if frame is not self._frame:
                self._note_run()
                self._frame = frame
            self._run_length += 1

    def _note_run(self) -> None:
        frame, count = self._frame, self._run_length
        self._frame, self._run_length = None, 0
        if frame is None:
            return
        self.own[frame.f_code] += count
        callers = set()
        at: FrameType | None = frame
        while at is not None and at.f_code is not Counts.run.__code__:
            callers.add(at.f_code)
            at = at.f_back
        for code in callers:
            self.whole[code] += count


def _traced(counts: Counts, function: Callable[[], None]) -> None:
    """Call it, and count. For CPython 3.11."""

    def on_profile(frame: FrameType, event: str, __: Any) -> None:
        counts.c_calls += event == "c_call" and frame.f_code.co_filename != __file__

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None  # what is played costs nothing
        counts.note_call(frame.f_code)
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return on_opcode

    def on_opcode(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            counts.note(frame)
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
        counts.note_call(code)
        return None

    def _on_opcode(self, code: CodeType, _: int) -> Any:
        counts = self._counted()
        if counts is None:
            return None
        if code.co_filename == __file__:
            return sys.monitoring.DISABLE
        counts.note(sys._getframe(1))
        return None

    def _on_c(self, code: CodeType, _: int, __: object, ___: object) -> None:
        counts = self._counted()
        if counts is not None and code.co_filename != __file__:
            counts.c_calls += 1


_watch: Callable[[Counts, Callable[[], None]], None] = (
    _Monitor() if sys.version_info >= (3, 12) else _traced
)


EngineStep = Callable[[int, int, list[EngineEvent]], EngineEffects]


@define
class Round:
    """One of one node: what its engine was given, and what came of it."""

    now_ms: int
    name: str
    events: list[str] = field(factory=list)
    effects: list[str] = field(factory=list)
    bytecodes: int = 0

    def __str__(self) -> str:
        given, done = ", ".join(self.events) or "-", ", ".join(self.effects) or "nothing"
        return f"{self.name:10}{self.now_ms % 1000:4} ms{self.bytecodes:8}  {given} -> {done}"


def _event_text(event: EngineEvent) -> str:
    message = getattr(event, "message", None) or getattr(event, "request", None)
    inner = getattr(message, "request", None) or getattr(message, "reply", None) or message
    return type(event if inner is None else inner).__name__


def _effect_texts(effects: EngineEffects) -> Iterator[str]:
    for node, message in effects.send_first + effects.send:
        inner = getattr(message, "request", None) or getattr(message, "reply", None) or message
        yield f"{type(inner).__name__} to {node}"
    for reply in effects.replies:
        yield f"{type(reply.reply).__name__} to {reply.session.node}"
    if effects.round:
        yield "commit"
    for kind in ("changes", "reads", "loads", "answers", "notices", "probes", "rail"):
        if getattr(effects, kind):
            yield kind


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
        # These nodes have no sockets: the ring's own Python is what is counted, nothing of a rail.
        config = Config(star=False, rail=False)
        self.nodes = {
            name: Node(name, path=path / name, peers=peers, config=config) for name in NAMES
        }
        self.rounds: list[Round] = []
        """Of the last act, when they are kept."""

    def keep_rounds(self) -> None:
        """Have the rounds of an act listed."""
        for node in self.nodes.values():
            engine = node._driver.engine
            engine.step = partial(self._kept_step, engine.step)  # type: ignore[method-assign]

    def _kept_step(
        self, step: EngineStep, now_ms: int, steady_us: int, events: list[EngineEvent]
    ) -> EngineEffects:
        effects = step(now_ms, steady_us, events)
        if self.counts is not None:
            self.rounds[-1].events = [_event_text(event) for event in events]
            self.rounds[-1].effects = list(_effect_texts(effects))
        return effects

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
            return
        counts = self.counts[name]
        before = counts.bytecodes
        self.rounds.append(Round(self.now_ms, name))
        counts.run(self.nodes[name]._driver._round)
        self.rounds[-1].bytecodes = counts.bytecodes - before

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
        self.rounds = []
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

    def check(self, kind: str) -> None:
        """That what was asked for last is done."""
        awaited = self._confirmation if kind == "put" else self._settlement
        assert awaited is not None
        assert awaited.done()


def rows(
    path: Path, count: int, by: str
) -> tuple[dict[str, list[dict[str, Counts]]], dict[str, list[Round]]]:
    """Of each message: what a put, a get and an ack cost. And the rounds of the last one."""
    cluster = Cluster(path)
    by_function = by == "function"
    if by == "round":
        cluster.keep_rounds()
    cluster.run(5000)
    declared = cluster.while_running(lambda: cluster.nodes["master"].queue("q", timeout=WAIT_S))
    cluster.run(1000)
    assert declared.status is not None
    handle = cluster.while_running(lambda: cluster.nodes["producer"].queue("q", timeout=WAIT_S))
    # How long that took depends on threads; from here on nothing does.
    cluster.run(START_MS + SET_UP_MS - cluster.now_ms)
    user = User(cluster, handle)
    found: dict[str, list[dict[str, Counts]]] = {"put": [], "get": [], "ack": []}
    rounds: dict[str, list[Round]] = {}
    acts = {"put": user.put, "get": user.get, "ack": user.ack}
    for number in range(WARM_UP + count):
        for kind, act in acts.items():
            counts = cluster.measure(act, by_function=by_function)
            rounds[kind] = cluster.rounds
            if number >= WARM_UP:
                found[kind].append(counts)
            if kind != "get":
                user.check(kind)
    cluster.close()
    return found, rounds


def show_functions(found: dict[str, list[dict[str, Counts]]], count: int) -> None:
    """A message's bytecodes by function, of each row: by itself, with what it calls, and calls."""
    columns = [(kinds, name) for kinds in (("put",), ("get", "ack")) for name in NAMES]
    for title in ("own", "whole", "called"):
        tables = [_summed(found, kinds, name, title) for kinds, name in columns]
        total: Counter[CodeType] = Counter()
        for table in tables:
            total += table
        heads = [f"{kinds[-1]} {name[:6]}" for kinds, name in columns]
        print(f"\n{title}\n" + "".join(f"{head:>12}" for head in heads))
        for code, _ in total.most_common():
            place = f"{Path(code.co_filename).stem}.{code.co_qualname}"
            print("".join(f"{table[code] / count:12.1f}" for table in tables) + f"  {place}")


def _summed(
    found: dict[str, list[dict[str, Counts]]], kinds: tuple[str, ...], name: str, title: str
) -> Counter[CodeType]:
    table: Counter[CodeType] = Counter()
    for kind in kinds:
        for counts in found[kind]:
            table += getattr(counts[name], title)
    return table


def show_rounds(rounds: dict[str, list[Round]]) -> None:
    for kind, each in rounds.items():
        print(f"\n{kind}")
        for one in each:
            print(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--by", choices=("function", "round"), default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        found, rounds = rows(Path(folder), arguments.count, arguments.by)
    print(f"{'':10}{'':10}{'rounds':>8}{'bytecodes':>11}{'calls':>11}{'C calls':>11}")
    for kind, messages in found.items():
        for name in (*NAMES, "user"):
            each = [counts[name] for counts in messages]
            rounds_mean, *others = (mean(getattr(one, of) for one in each) for of in FIELDS)
            print(
                f"{kind:10}{name:10}{rounds_mean:8.1f}"
                + "".join(f"{count:11.0f}" for count in others)
            )
    for name in NAMES:
        both = sum(counts[name].bytecodes for kind in ("get", "ack") for counts in found[kind])
        print(f"get + ack {name:10}{both / arguments.count:19.0f}")
    if arguments.by == "function":
        show_functions(found, arguments.count)
    elif arguments.by == "round":
        show_rounds(rounds)


FIELDS = ("rounds", "bytecodes", "calls", "c_calls")

if __name__ == "__main__":
    main()
