"""Many queues on three nodes: to declare them, to keep them, and to lose a node.

    python benches/queues.py [--queues 1000] [--declarers 1] [--idle 10] [--path DIR] [--json]

Three nodes on loopback, each a process of its own. Each declares its third of the queues, so many
threads one queue after the other, and is their master. Then nothing happens for a while; then a
handle is opened on every queue of the first node, on the second; then again nothing happens. Then
the first node is killed (SIGKILL), and at once one message is put into each of its queues: how
long until all are confirmed by their new masters? At last it comes back, until all is in sync.

On a busy machine the seconds say little: CPU seconds (user and system) of each process and counts
of commits say more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from kernel import counter, cpu_s
from mirrorq import MirroredQueue, Node
from mirrorq.demo.ports import free_ports
from mirrorq.node.collector import rare_full_collections

WAIT_S = 600.0
LOOK_S = 0.25
"""Between two looks at whether something has come about."""
LOOK_SHARE = 20
"""A look costs CPU for each queue: it is followed by so many times its time without one."""
SETTLE_S = 8.0
"""After this a cluster in which nothing happens has said and written all there was."""
NAMES = "abc"
UNRELATED = "unrelated"
"""A queue without a copy on the first node, so that the kill is no reason for it to wait."""
PUT_EVERY_S = 0.005


# --- A node's process -------------------------------------------------------------------------


class NodeProcess:
    """Does what lines on standard input ask for, and answers each with a line."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handles: dict[str, MirroredQueue] = {}
        self._unrelated: MirroredQueue | None = None
        self._putter: Putter | None = None

    def declare(self, names: list[str], threads: int) -> None:
        left = iter(names)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    name = next(left, None)
                if name is None:
                    return
                self._node.queue(name, timeout=WAIT_S).close()
                progress("declared")

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def open(self, names: list[str]) -> None:
        for name in names:
            self._handles[name] = self._node.queue(name, passive=True)

    def unrelated(self) -> None:
        """Open the unrelated queue here, with its other copy on the third node."""
        policy = {"ha-mode": "nodes", "ha-params": ["b", "c"]}
        self._node.set_policy(UNRELATED, f"^{UNRELATED}$", policy)
        self._unrelated = self._node.queue(UNRELATED)

    def begin_puts(self) -> None:
        assert self._unrelated is not None
        self._putter = Putter(self._unrelated)

    def end_puts(self) -> list[float]:
        """Seconds from each put into the unrelated queue to its confirm."""
        assert self._putter is not None
        return self._putter.end()

    def put(self) -> list[float]:
        """One message into each queue of which a handle is open: seconds to each confirm."""
        began = time.perf_counter()
        puts = [handle.put(b"x" * 100) for handle in self._handles.values()]
        took: list[float] = []
        for confirmation in puts:
            confirmation.add_done_callback(lambda _: took.append(time.perf_counter() - began))
        for confirmation in puts:
            confirmation.result(WAIT_S)
        return took

    def in_sync(self, queues: int) -> None:
        """Wait until so many queues have two mirrors in sync."""
        while True:
            began = time.perf_counter()
            rows = [row for row in self._node.queues() if row.name != UNRELATED]
            ready = sum(len(row.synchronised_mirrors) == 2 for row in rows)
            if len(rows) == ready == queues:
                return
            time.sleep(max(LOOK_S, LOOK_SHARE * (time.perf_counter() - began)))

    def commits(self) -> int:
        sample = self._node._sample(WAIT_S)
        return 0 if sample is None else sample.commits.count


class Putter:
    """Puts one message after the other into a queue, each when the last one is confirmed."""

    def __init__(self, handle: MirroredQueue) -> None:
        self._handle = handle
        self._ends = threading.Event()
        self._took: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(PUT_EVERY_S):
            began = time.perf_counter()
            self._handle.put(b"x" * 100).result(WAIT_S)
            self._took.append(time.perf_counter() - began)

    def end(self) -> list[float]:
        self._ends.set()
        self._thread.join()
        return self._took


def run_node(settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        Node(settings["name"], path=settings["path"], peers=settings["peers"]) as node,
        rare_full_collections(),  # as in `mirrorq node run`
    ):
        node.wait_ready(WAIT_S)
        doing = NodeProcess(node)
        answer(None)
        for line in sys.stdin:
            do, arguments = json.loads(line)
            answer(getattr(doing, do)(*arguments))


def answer(value: object) -> None:
    say_line({"answer": value})


def progress(what: str) -> None:
    say_line({"progress": what})


def say_line(told: dict[str, object]) -> None:
    """In one piece: several threads declare."""
    os.write(sys.stdout.fileno(), (json.dumps(told) + "\n").encode())


class Child:
    """The other end of such a process."""

    def __init__(self, settings: dict[str, Any], on_progress: Callable[[], None]) -> None:
        command = [sys.executable, __file__, "--node", json.dumps(settings)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._on_progress = on_progress
        self.pid = self._process.pid

    def tell(self, do: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps((do, arguments)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What it says to what it was told last (and, at first, that it runs)."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "answer" in found:
                return found["answer"]
            self._on_progress()
        raise RuntimeError("a node has failed: see above")

    def ask(self, do: str, *arguments: object) -> Any:
        self.tell(do, *arguments)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


# --- The measurement --------------------------------------------------------------------------


class Bench:
    """Three nodes, and rows of what was measured."""

    def __init__(self, arguments: argparse.Namespace, place: Path, stack: ExitStack) -> None:
        self._arguments = arguments
        ports = free_ports(len(NAMES))
        self._peers = {n: f"tcp://127.0.0.1:{p}" for n, p in zip(NAMES, ports, strict=True)}
        self._place = place
        self._stack = stack
        self._done = 0
        self.children: dict[str, Child] = {}
        self.rows: list[dict[str, Any]] = []

    def start(self, *names: str) -> None:
        for name in names:
            path = str(self._place / name)
            settings = {"name": name, "path": path, "peers": self._peers}
            self.children[name] = Child(settings, self._on_progress)
            self._stack.callback(self.children[name].end)
        for name in names:
            self.children[name].answer()

    def _on_progress(self) -> None:
        self._done += 1
        if self._done % 10 == 0:
            say(f"{self._done} of {self._arguments.queues} declared")

    def run(self) -> None:
        count = self._arguments.queues
        names = {n: [f"queue-{i}-{n}" for i in range(k, count, 3)] for k, n in enumerate(NAMES)}
        self.start(*NAMES)
        self._rest("idle, no queues")
        with self._row("declare"):
            for name, child in self.children.items():
                child.tell("declare", names[name], self._arguments.declarers)
            for child in self.children.values():
                child.answer()
        with self._row("declared, until at rest"):
            self._pause(SETTLE_S)
        self._rest(f"idle, {count} queues")
        say("opening handles")
        self.children["b"].ask("open", names["a"])
        self._pause(SETTLE_S)
        self._rest(f"idle, and {len(names['a'])} handles on b")
        self.children["b"].ask("unrelated")
        with self._row("puts to the unrelated queue") as row, self._unrelated(row):
            self._pause(SETTLE_S)
        with self._row("killed, until at rest") as row, self._unrelated(row):
            self._kill(len(names["a"]))
            self._pause(SETTLE_S)
        say("coming back")
        with self._row("back, until all in sync"):
            self.start("a")
            self.children["b"].ask("in_sync", count)

    def _kill(self, puts: int) -> None:
        with self._row(f"killed, {puts} puts") as row:
            self.children.pop("a").kill()
            took = sorted(self.children["b"].ask("put"))
            row["first_s"], row["p50_s"] = round(took[0], 3), round(statistics.median(took), 3)
            row["all_s"] = round(took[-1], 3)

    @contextlib.contextmanager
    def _unrelated(self, row: dict[str, Any]) -> Iterator[None]:
        """Put into the unrelated queue meanwhile."""
        self.children["b"].ask("begin_puts")
        yield
        took = sorted(self.children["b"].ask("end_puts"))
        row["unrelated_puts"] = len(took)
        row["unrelated_p50_s"] = round(statistics.median(took), 4)
        row["unrelated_slowest_s"] = round(took[-1], 3)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            say(f"{left:.0f} s of rest")
            time.sleep(min(left, 1))

    def _rest(self, what: str) -> None:
        with self._row(what):
            self._pause(self._arguments.idle)

    @contextlib.contextmanager
    def _row(self, what: str) -> Iterator[dict[str, Any]]:
        say(what)
        row: dict[str, Any] = {"what": what}
        # Who comes or goes meanwhile is not counted, nor what a question costs the node.
        asked = {name: child.ask("commits") for name, child in self.children.items()}
        before = {name: self._used(child) for name, child in self.children.items()}
        began = time.perf_counter()
        yield row
        row["seconds"] = round(time.perf_counter() - began, 3)
        after = {name: self._used(child) for name, child in self.children.items()}
        for name, child in self.children.items():
            if name not in before:
                continue
            cpu, wakes = (now - was for now, was in zip(after[name], before[name], strict=True))
            commits = child.ask("commits") - asked[name]
            row[name] = {
                "cpu_s": round(cpu, 3),
                "cpu_share": round(cpu / row["seconds"], 4),
                "wakes": wakes,
                "commits": commits,
                "rss_mib": counter(Path(f"/proc/{child.pid}"), "VmRSS") // 1024,
            }
        self.rows.append(row)

    def _used(self, child: Child) -> tuple[float, int]:
        """CPU seconds, and how often its threads were woken after a wait."""
        wakes = 0
        for thread in list(Path(f"/proc/{child.pid}/task").iterdir()):
            with suppress(FileNotFoundError):  # the thread has ended meanwhile
                wakes += counter(thread, "voluntary_ctxt_switches")
        return cpu_s(child.pid), wakes


def say(text: str) -> None:
    print(f"\r{text:60}", end="", file=sys.stderr, flush=True)


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'':28} {'seconds':>8}  CPU s: a, b, c          %: a, b, c       commits    wakes/s b")
    for row in rows:
        nodes = [row.get(name) for name in NAMES]
        cpu = " ".join(f"{n['cpu_s']:6.2f}" if n else f"{'-':>6}" for n in nodes)
        share = " ".join(f"{100 * n['cpu_share']:5.1f}" if n else f"{'-':>5}" for n in nodes)
        commits = " ".join(str(n["commits"]) if n else "-" for n in nodes)
        wakes = row["b"]["wakes"] / row["seconds"]
        counts = f"{commits:>14} {wakes:8.0f}"
        print(f"{row['what']:28} {row['seconds']:8.2f}  {cpu}   {share}   {counts}")
        if "all_s" in row:
            text = f"first {row['first_s']} s, half {row['p50_s']} s, all {row['all_s']} s"
            print(f"{'':28} confirmed by the new masters after: {text}")
        if "unrelated_puts" in row:
            text = f"p50 {row['unrelated_p50_s']} s, slowest {row['unrelated_slowest_s']} s"
            print(f"{'':28} {row['unrelated_puts']} puts into the unrelated queue: {text}")
    last = rows[-1]["b"]
    print(f"memory of b: {last['rss_mib']} MiB; load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--declarers", type=int, default=1, help="threads of each node")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of rest in each part")
    parser.add_argument("--path", help="directory on the disk that counts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--node", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        run_node(json.loads(arguments.node))
        return
    if arguments.queues < 3:
        parser.error(f"--queues {arguments.queues}: at least one for each of three nodes")
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="mirrorq-queues-", dir=arguments.path)
        bench = Bench(arguments, Path(stack.enter_context(made)), stack)
        try:
            bench.run()
        finally:
            say("")
            print("\r", end="", file=sys.stderr)
    if arguments.json:
        found = {"queues": arguments.queues, "load": os.getloadavg()[0], "rows": bench.rows}
        print(json.dumps(found))
    else:
        show(bench.rows)


if __name__ == "__main__":
    main()
