"""A short form of `make fuzz`: every target, a few thousand inputs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from mirrorq.errors import ProtocolError
from mirrorq.wire import messages

from .calls import CALLS_OF_USERS
from .mutation import frame, resealed, spoiled_bytes, value
from .readers import READERS, Target, expecting
from .runner import INPUT_CPU_S, run
from .world import CLUSTER

INPUTS = 2000
EPISODES = 5


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def nothing(_: int) -> None:
    """No progress is shown."""


@pytest.mark.parametrize("target", READERS, ids=lambda target: target.name)
def test_readers(target: Target) -> None:
    """Only the errors that each reader names; no hang, no growth."""
    outcome = run(target, 1, range(INPUTS), nothing)
    assert not outcome.wrong, outcome.wrong[0]


@pytest.mark.slow
def test_nodes_and_clients() -> None:
    """Nodes whose peers and clients send what is well-formed and wrong go on."""
    outcome = run(CLUSTER, 1, range(EPISODES), nothing)
    assert not outcome.wrong, outcome.wrong[0]


def test_calls_with_odd_arguments() -> None:
    """Each is taken or refused in words, none hangs, and node and client go on."""
    outcome = run(CALLS_OF_USERS, 1, range(20), nothing)
    assert not outcome.wrong, outcome.wrong[0]


# --- The fuzzer itself --------------------------------------------------------------------


def test_good_values_are_read() -> None:
    """What is spoiled was right before, and is often still read: inputs go deep."""
    chance = Random(1)
    for _ in range(200):
        message = value(chance, messages.WireMessage)
        messages.decode(messages.encode(message))
    frames = [resealed(spoiled_bytes(chance, frame(chance))) for _ in range(500)]
    read = [expecting(ProtocolError, partial(messages.make_entry, each)) for each in frames]
    assert 25 < sum(each is not None for each in read) < 475


def test_what_is_wrong_is_found() -> None:
    """An unexpected error, a hang and growth are each reported, with what repeats them."""
    kept: list[bytes] = []

    def broken(chance: Random) -> None:
        if chance.random() < 0.5:
            raise KeyError("no")

    def hanging(_: Random) -> None:
        while True:
            pass

    def growing(_: Random) -> None:
        kept.append(b"x" * (1 << 20))

    outcome = run(Target("broken", broken), 7, range(50), nothing)
    assert "KeyError" in outcome.wrong[0]
    assert "--target broken --seed 7 --only" in outcome.wrong[0]
    assert "memory grew" in run(Target("growing", growing), 1, range(60), nothing).wrong[-1]
    hung = run(Target("hanging", hanging), 1, range(1), nothing, input_cpu_s=INPUT_CPU_S / 50)
    assert "Hang" in hung.wrong[0]
