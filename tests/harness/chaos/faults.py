"""What breaks: each fault has a kind, targets and a duration, all drawn from the seed.

A fault is begun and, after its time, ended by `Course`; two may hold at a time. The checks must
hold under any mixture, so nothing here cares for what else is broken, with one exception: a store
is lost only when every member is in sync and nothing else is wrong, for a lost last copy is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from attrs import frozen

__all__ = ["KINDS", "Cluster", "Fault", "draw"]

DELAYS_MS = (20, 80, 250)


class Wires(Protocol):
    """The network between the nodes: proxies, or namespaces."""

    def cut(self, one: str, other: str) -> None: ...
    def hold(self, one: str, other: str) -> None: ...
    def lose(self, source: str, target: str) -> None: ...
    def delay(self, one: str, other: str, milliseconds: int) -> None: ...
    def mend(self, one: str, other: str) -> None: ...


class Cluster(Protocol):
    """What faults do to a cluster."""

    names: tuple[str, ...]

    @property
    def wires(self) -> Wires: ...

    def master(self) -> str | None:
        """Who was master of the queue a moment ago."""
        ...

    def kill(self, name: str) -> None: ...
    def close(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def stop(self, name: str) -> None: ...
    def go_on(self, name: str) -> None: ...
    def fill(self, name: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def flip(self, name: str) -> None:
        """Change bits in messages on the node's disk."""
        ...

    def flip_back(self, name: str) -> None:
        """Undo what nobody has mended."""
        ...

    def replace_store(self, name: str) -> None:
        """Wait until all is well, end the node, lose its store, start it again."""
        ...


@frozen
class Fault:
    """Something that is broken for a while."""

    kind: str
    text: str
    begin: Callable[[], None]
    end: Callable[[], None]
    duration_s: float
    is_alone: bool = False
    """Nothing else may be broken when it begins."""


def draw(cluster: Cluster, chance: Random, kinds: tuple[str, ...] = ()) -> Fault:
    """The next fault, of these kinds (empty: of any)."""
    chosen = [_KINDS[kind] for kind in kinds or _KINDS]
    make = chance.choices([make for make, _ in chosen], [weight for _, weight in chosen])[0]
    return make(cluster, chance)


def _one(cluster: Cluster, chance: Random) -> str:
    """Any node, the master as often as all others together."""
    master = cluster.master()
    return master if master and chance.random() < 0.5 else chance.choice(cluster.names)


def _two(cluster: Cluster, chance: Random) -> tuple[str, str]:
    one = _one(cluster, chance)
    return one, chance.choice([name for name in cluster.names if name != one])


def _each(names: tuple[str, ...], work: Callable[[str], None]) -> Callable[[], None]:
    def work_all() -> None:
        for name in names:
            work(name)

    return work_all


def _kill(cluster: Cluster, chance: Random) -> Fault:
    return _killing(cluster, chance, "kill", (_one(cluster, chance),))


def _kill_many(cluster: Cluster, chance: Random) -> Fault:
    count = chance.randint(2, len(cluster.names))
    return _killing(cluster, chance, "kill-many", tuple(chance.sample(cluster.names, count)))


def _killing(cluster: Cluster, chance: Random, kind: str, names: tuple[str, ...]) -> Fault:
    seconds = chance.choice((0.0, 0.5, 2.0, 4.0))
    begin, end = _each(names, cluster.kill), _each(names, cluster.start)
    return Fault(kind, f"{kind} {' '.join(names)}", begin, end, seconds)


def _close(cluster: Cluster, chance: Random) -> Fault:
    name = _one(cluster, chance)
    begin, end = _each((name,), cluster.close), _each((name,), cluster.start)
    return Fault("close", f"close {name}", begin, end, chance.choice((0.0, 1.0, 3.0)))


def _stop(cluster: Cluster, chance: Random) -> Fault:
    count = 1 if chance.random() < 0.8 else len(cluster.names) // 2 + 1
    names = tuple(chance.sample(cluster.names, count)) if count > 1 else (_one(cluster, chance),)
    begin, end = _each(names, cluster.stop), _each(names, cluster.go_on)
    seconds = chance.choice((0.1, 0.4, 1.5, 3.0, 6.0))
    return Fault("stop", f"stop {' '.join(names)} for {seconds} s", begin, end, seconds)


def _seconds(chance: Random) -> float:
    return chance.choice((0.05, 0.5, 2.0, 4.0))


def _wire(
    kind: str, cluster: Cluster, chance: Random, pairs: list[tuple[str, str]], how: str
) -> Fault:
    """Something with the wires between pairs of nodes: `how` is a method of `Wires`."""
    work: Callable[[str, str], None] = getattr(cluster.wires, how)

    def begin() -> None:
        for one, other in pairs:
            work(one, other)

    def end() -> None:
        for one, other in pairs:
            cluster.wires.mend(one, other)

    text = f"{kind} ({how}) {' '.join(f'{one}-{other}' for one, other in pairs)}"
    return Fault(kind, text, begin, end, _seconds(chance))


def _cut(cluster: Cluster, chance: Random) -> Fault:
    return _wire("cut", cluster, chance, [_two(cluster, chance)], "cut")


def _hold(cluster: Cluster, chance: Random) -> Fault:
    return _wire("hold", cluster, chance, [_two(cluster, chance)], "hold")


def _lose(cluster: Cluster, chance: Random) -> Fault:
    return _wire("one-way", cluster, chance, [_two(cluster, chance)], "lose")


def _bridge(cluster: Cluster, chance: Random) -> Fault:
    """One node sees all, the others only it: each sees another majority or none."""
    middle = chance.choice(cluster.names)
    others = [name for name in cluster.names if name != middle]
    pairs = [(one, other) for i, one in enumerate(others) for other in others[i + 1 :]]
    kept = chance.sample(pairs, chance.randint(1, len(pairs)))
    return _wire("bridge", cluster, chance, kept, chance.choice(("hold", "cut")))


def _isolate(cluster: Cluster, chance: Random) -> Fault:
    one = _one(cluster, chance)
    pairs = [(one, other) for other in cluster.names if other != one]
    return _wire("isolate", cluster, chance, pairs, chance.choice(("hold", "cut")))


def _halves(cluster: Cluster, chance: Random) -> Fault:
    few = chance.sample(cluster.names, len(cluster.names) // 2)
    pairs = [(one, other) for one in few for other in cluster.names if other not in few]
    return _wire("halves", cluster, chance, pairs, chance.choice(("hold", "cut")))


def _delay(cluster: Cluster, chance: Random) -> Fault:
    one, other = _two(cluster, chance)
    milliseconds = chance.choice(DELAYS_MS)
    return Fault(
        "delay",
        f"delay {one}-{other} by {milliseconds} ms",
        lambda: cluster.wires.delay(one, other, milliseconds),
        lambda: cluster.wires.mend(one, other),
        _seconds(chance),
    )


def _full(cluster: Cluster, chance: Random) -> Fault:
    name = _one(cluster, chance)
    begin, end = _each((name,), cluster.fill), _each((name,), cluster.drain)
    return Fault("full-disk", f"full disk {name}", begin, end, chance.choice((0.5, 2.0, 4.0)))


def _wipe(cluster: Cluster, chance: Random) -> Fault:
    name = _one(cluster, chance)
    begin = _each((name,), cluster.replace_store)
    return Fault("wipe", f"wipe {name}", begin, lambda: None, 0.0, is_alone=True)


def _flip(cluster: Cluster, chance: Random) -> Fault:
    """Soon undone: when others fail one after the other, this copy may come to be the last."""
    name = _one(cluster, chance)
    begin, end = _each((name,), cluster.flip), _each((name,), cluster.flip_back)
    return Fault("flip", f"flip bits {name}", begin, end, 0.7, is_alone=True)


_KINDS: dict[str, tuple[Callable[[Cluster, Random], Fault], int]] = {
    "kill": (_kill, 5),
    "kill-many": (_kill_many, 2),
    "close": (_close, 2),
    "stop": (_stop, 4),
    "cut": (_cut, 2),
    "hold": (_hold, 3),
    "one-way": (_lose, 3),
    "bridge": (_bridge, 2),
    "isolate": (_isolate, 3),
    "halves": (_halves, 2),
    "delay": (_delay, 2),
    "full-disk": (_full, 2),
    "wipe": (_wipe, 1),
    "flip": (_flip, 2),
}
"""What makes a fault of each kind, and how often it is drawn."""
KINDS = tuple(_KINDS)
