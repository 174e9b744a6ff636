"""`python -m harness.chaos.spools --rounds 200`: a spool whose producer and node are killed, whose
disk is full, which is copied, and set back to an older copy.

Each round does one of these to real processes. At the end all copies are opened until nothing is
left in them, and the queue is looked at: all that was accepted is in it, all that was confirmed
too, and once where no copy of the store had it. Lost may be only what was accepted after a copy
was made, and was only in the store that this copy took the place of.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread

import mirrorq
from mirrorq.demo.ports import free_ports

ACTIONS = ("kill producer", "kill node", "kill both", "full", "full, killed", "copy", "set back")
WAIT_S = 120
COPIES_MAX = 2
NODE = """
import sys, time
import mirrorq

node = mirrorq.Node("n", path=sys.argv[1], peers={"n": sys.argv[2]})
while True:
    time.sleep(1)
"""
PRODUCER = """
import os, resource, signal, sys, time
import mirrorq

endpoint, path, letter, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
limits = resource.getrlimit(resource.RLIMIT_FSIZE)

def set_full(*_):
    largest = max(os.stat(os.path.join(path, name)).st_size for name in os.listdir(path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))

signal.signal(signal.SIGUSR1, set_full)
signal.signal(signal.SIGUSR2, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, limits))

def tell(what, names, put):
    if what == "a" and put.is_accepted or what == "c" and put.exception(0) is None:
        os.write(1, "".join(f"{what} {name}\\n" for name in names).encode())

client = mirrorq.connect(endpoint, spool=path)
orders = client.queue("orders")
number = 0
while count < 0 or number < count:
    size = 12 if number % 7 == 0 else 1
    names = [f"{letter}{number + index}" for index in range(size)]
    bodies = [name.encode() + b" " * (number % 5 * 4000) for name in names]
    os.write(1, "".join(f"p {name}\\n" for name in names).encode())
    number += size
    try:
        put = orders.put_many(bodies) if size > 1 else orders.put(bodies[0])
    except mirrorq.MirrorQError:
        time.sleep(0.1)
        continue
    put.add_accept_callback(lambda put, names=names: tell("a", names, put))
    put.add_done_callback(lambda put, names=names: tell("c", names, put))
    time.sleep(0.002)
orders.wait_for_confirms(120)
client.close()
"""


class Seen:
    """What all producers have said."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.accepted: set[str] = set()
        self.confirmed: set[str] = set()

    def read(self, process: subprocess.Popen[bytes], has_begun: Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            has_begun.set()
            if line.endswith(b"\n"):
                kind, name = line.decode().split()
                {"p": self.put, "a": self.accepted, "c": self.confirmed}[kind].add(name)


class Course:
    """One cluster of one node, one spool and copies of it."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.place = place
        self.endpoint = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        self.seen = Seen()
        self.done: Counter[str] = Counter()
        self.copies: list[tuple[Path, set[str]]] = []
        """Each with what may be in it."""
        self.begun = 0
        self.in_copies: set[str] = set()
        self.may_be_lost: set[str] = set()
        self.node = self._begin_node()
        self.producer, self.reader = self._begin_producer(place / "spool")

    def _begin_node(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", NODE, self.place / "n", self.endpoint])

    def _begin_producer(
        self, path: Path, count: int = -1
    ) -> tuple[subprocess.Popen[bytes], Thread]:
        self.begun += 1
        words = [self.endpoint, str(path), f"r{self.begun}.", str(count)]
        process = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, *words], stdout=subprocess.PIPE, stderr=sys.stderr
        )
        has_begun = Event()
        reader = Thread(target=self.seen.read, args=(process, has_begun))
        reader.start()
        assert has_begun.wait(WAIT_S), "the producer does not begin"
        return process, reader

    def _kill_producer(self) -> None:
        self.producer.kill()
        self.producer.wait()
        self.reader.join()

    def _restart_producer(self) -> None:
        self.producer, self.reader = self._begin_producer(self.place / "spool")

    def _kill_node(self) -> None:
        self.node.kill()
        self.node.wait()

    def round(self) -> None:
        time.sleep(self.random.uniform(0.3, 1.2))
        action = self.random.choice(ACTIONS)
        if action == "set back" and not self.copies:
            action = "copy"
        self.done[action] += 1
        if "node" in action or "both" in action:
            self._kill_node()
            time.sleep(self.random.uniform(0, 1))
        if "full" in action:
            self.producer.send_signal(signal.SIGUSR1)
            time.sleep(self.random.uniform(0.1, 0.6))
        if action == "full":
            self.producer.send_signal(signal.SIGUSR2)
        elif action != "kill node":
            self._kill_producer()
            if action == "copy":
                self._copy()
            elif action == "set back":
                self._set_back()
            self._restart_producer()
        if self.node.poll() is not None:
            self.node = self._begin_node()

    def _copy(self) -> None:
        copy = self.place / f"copy{self.begun}"
        shutil.copytree(self.place / "spool", copy)
        self.copies.append((copy, set(self.seen.put)))
        self.in_copies |= self.seen.put - self.seen.confirmed
        if len(self.copies) > COPIES_MAX:
            self._drain(self.copies.pop(0)[0])

    def _set_back(self) -> None:
        """An older copy takes the place of the spool."""
        copy, may_have = self.copies.pop(self.random.randrange(len(self.copies)))
        shutil.rmtree(self.place / "spool")
        copy.rename(self.place / "spool")
        self.may_be_lost |= self.seen.put - may_have - self.seen.confirmed

    def _drain(self, path: Path) -> None:
        """A copy puts messages of its own, and sends all that it has."""
        if self.node.poll() is not None:
            self.node = self._begin_node()
        process, reader = self._begin_producer(path, 40)
        assert process.wait(WAIT_S) == 0
        reader.join()
        shutil.rmtree(path)

    def end(self) -> dict[str, int]:
        """Drain all, and look at the queue."""
        self._kill_producer()
        for path in [self.place / "spool", *(path for path, _ in self.copies)]:
            self._drain(path)
        stored: Counter[str] = Counter()
        with mirrorq.connect(self.endpoint, timeout=WAIT_S) as client:
            orders, start = client.queue("orders"), 1
            while found := orders.browse(start):
                stored.update(one.body.split()[0].decode() for one in found)
                start = found[-1].sequence + 1
        self._kill_node()
        doubled = {name for name, times in stored.items() if times > 1}
        seen = self.seen
        return {
            "put": len(seen.put),
            "accepted": len(seen.accepted),
            "confirmed": len(seen.confirmed),
            "accepted and lost": len(seen.accepted - stored.keys() - self.may_be_lost),
            "confirmed and lost": len(seen.confirmed - stored.keys()),
            "lost with the store they were in": len(self.may_be_lost - stored.keys()),
            "doubled, in copies": len(doubled & self.in_copies),
            "doubled": len(doubled - self.in_copies),
        }

    def close(self) -> None:
        for process in (self.producer, self.node):
            process.kill()
            process.wait()


def main() -> int:
    """Exit status 1 when something is lost or doubled."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        course = Course(Path(place), options.seed)
        try:
            for _ in range(options.rounds):
                course.round()
            found = course.end()
        finally:
            course.close()
    print(", ".join(f"{name} {times}" for name, times in sorted(course.done.items())))
    print(", ".join(f"{name} {count}" for name, count in found.items()))
    wrong = ("accepted and lost", "confirmed and lost", "doubled")
    return 1 if any(found[name] for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
