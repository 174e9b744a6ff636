"""Every interleaving of small foundings: loss, delay, repetition, crashes, wiped stores.

Messages never leave the network, so that each may arrive at any time, any number of times,
or never. A crash keeps what was synced; a wipe gives the node a new store. There are never
two foundings with a store in common, and when the faults end all nodes are founded or say
why not.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator

import pytest
from attrs import define

from mirrorq.cluster.bootstrap import (
    Founding,
    FoundingEvent,
    FoundingReceived,
    FoundingTick,
    PeerHello,
)
from mirrorq.config import Config
from mirrorq.protocol.identities import StoreId

CONFIG = Config()
Message = tuple[StoreId, StoreId, FoundingEvent]


@define
class World:
    """All nodes' machines and disks, and all that was ever sent."""

    machines: tuple[Founding, ...]
    disks: tuple[tuple[bytes, bool], ...]
    sent: tuple[Message, ...]
    decided: tuple[tuple[StoreId, ...], ...] = ()
    crashes: int = 0
    wipes: tuple[str, ...] = ()

    def key(self) -> object:
        return (
            tuple(_state(machine) for machine in self.machines),
            self.disks,
            frozenset(self.sent),
            self.decided,
            self.crashes,
            self.wipes,
        )


def _state(machine: Founding) -> object:
    return (
        machine.store,
        machine.founded,
        machine._promised,
        machine._is_decided,
        machine._is_void,
        machine._proposal,
        tuple(sorted(machine._promises)),
        tuple(sorted((n, h.store, h.founded) for n, h in machine._known.items())),
    )


def _clone(machine: Founding) -> Founding:
    twin = copy.copy(machine)
    twin._known = dict(machine._known)
    twin._promises = dict(machine._promises)
    # Time enough has passed for whatever is repeated.
    twin._repeat_at_ms = 0
    return twin


def _start(store: StoreId, names: tuple[str, ...], disk: tuple[bytes, bool]) -> Founding:
    return Founding(store, names, disk[0], CONFIG, founded=disk[1])


def _begin(names: tuple[str, ...]) -> World:
    machines = tuple(_start(StoreId(name, 1), names, (b"", False)) for name in names)
    return World(machines, ((b"", False),) * len(names), ())


def _replaced(values: tuple, place: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:place], value, *values[place + 1 :])


def _stepped(world: World, place: int, event: FoundingEvent) -> World:
    machine = _clone(world.machines[place])
    effects = machine.step(0, event)
    promise, founded = world.disks[place]
    disk = (effects.promise or promise, founded or effects.found is not None)
    news = tuple(
        message
        for target, content in effects.send
        if (message := (machine.store, target, FoundingReceived(machine.store, content)))
        not in world.sent
    )
    decided = world.decided
    if effects.found is not None and effects.found not in decided:
        decided = tuple(sorted((*decided, effects.found)))
    after = World(
        _replaced(world.machines, place, machine),
        _replaced(world.disks, place, disk),
        world.sent + news,
        decided,
        world.crashes,
        world.wipes,
    )
    _check(after)
    return after


def _check(world: World) -> None:
    for number, first in enumerate(world.decided):
        for second in world.decided[number + 1 :]:
            assert not [store for store in first if store in second], f"{first} and {second}"


def _hello(world: World, speaker: int, hearer: int) -> World:
    """Put the speaker's hello into the network."""
    machine = world.machines[speaker]
    target = world.machines[hearer].store
    message = (machine.store, target, PeerHello(machine.store, machine.founded))
    if message in world.sent:
        return world
    return World(
        world.machines,
        world.disks,
        (*world.sent, message),
        world.decided,
        world.crashes,
        world.wipes,
    )


def _crashed(world: World, place: int) -> World:
    machine = world.machines[place]
    again = _start(machine.store, machine.names, world.disks[place])
    machines = _replaced(world.machines, place, again)
    return World(machines, world.disks, world.sent, world.decided, world.crashes + 1, world.wipes)


def _wiped(world: World, place: int) -> World:
    old = world.machines[place]
    store = StoreId(old.store.node, old.store.store + 1)
    machines = _replaced(world.machines, place, _start(store, old.names, (b"", False)))
    disks = _replaced(world.disks, place, (b"", False))
    wipes = (*world.wipes, store.node)
    return World(machines, disks, world.sent, world.decided, world.crashes, wipes)


def _successors(world: World, crashes_max: int, wipes_max: int) -> Iterator[World]:
    count = len(world.machines)
    for speaker in range(count):
        for hearer in range(count):
            if speaker != hearer:
                yield _hello(world, speaker, hearer)
    for _, target, event in world.sent:
        for place, machine in enumerate(world.machines):
            if machine.store == target:
                yield _stepped(world, place, event)
    for place in range(count):
        if world.crashes < crashes_max:
            yield _crashed(world, place)
        if len(world.wipes) < wipes_max:
            yield _wiped(world, place)


def _explore(names: tuple[str, ...], crashes_max: int, wipes_max: int, states_max: int) -> int:
    first = _begin(names)
    seen = {first.key()}
    waiting = deque([first])
    while waiting and len(seen) < states_max:
        for world in _successors(waiting.popleft(), crashes_max, wipes_max):
            key = world.key()
            if key not in seen:
                seen.add(key)
                waiting.append(world)
    return len(seen)


def _healed(world: World) -> World:
    """Repeat, with links that lose nothing: hellos, ticks, and all answers to them."""
    places = range(len(world.machines))
    for _ in range(6):
        world.sent = ()
        for speaker in places:
            for hearer in places:
                if speaker != hearer:
                    world = _hello(world, speaker, hearer)
        for place in places:
            world = _stepped(world, place, FoundingTick())
        done = 0
        while done < len(world.sent):
            _, target, event = world.sent[done]
            done += 1
            for place in places:
                if world.machines[place].store == target:
                    world = _stepped(world, place, event)
    return world


@pytest.mark.slow
def test_two_nodes_in_every_interleaving() -> None:
    """Two nodes with a crash and a wipe: every reachable state is safe."""
    states = _explore(("a", "b"), crashes_max=1, wipes_max=1, states_max=1_000_000)
    assert 100 < states < 1_000_000


def test_three_nodes_in_the_first_interleavings() -> None:
    """Three nodes with a crash and a wipe: the states nearest to the start are safe."""
    assert _explore(("a", "b", "c"), crashes_max=1, wipes_max=1, states_max=8_000) >= 8_000


def test_long_random_walks_end_founded_or_stuck_with_a_reason() -> None:
    """After healing each node is founded, asks to be admitted, or says what to do.

    Stuck is allowed only when a coordinator's store was wiped.
    """
    outcomes = {"founded": 0, "stuck": 0}
    for seed in range(150):
        pick = random.Random(seed)
        world = _begin(("a", "b", "c"))
        for _ in range(pick.randint(5, 60)):
            world = pick.choice(list(_successors(world, crashes_max=3, wipes_max=2)))
        world = _healed(world)
        if any(machine.founded for machine in world.machines):
            outcomes["founded"] += 1
            for machine in world.machines:
                assert machine.founded or machine.needs_admission or machine.stuck, seed
        else:
            outcomes["stuck"] += 1
            assert "a" in world.wipes, f"seed {seed}: stuck without a wiped coordinator"
            assert any(machine.stuck for machine in world.machines), seed
    assert outcomes["founded"] > 50
    assert outcomes["stuck"] > 0
