"""Runs of single puts: columns that grow on users' threads and leave as frames."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirrorq import MirroredQueue
from mirrorq.api.batching import PutRun, frames_of
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publish_options import PACK_COUNT, PLAIN
from mirrorq.wire import frames
from mirrorq.wire.properties import pack_properties

THREADS = 4
PUTS = 400


def run_of(outcomes: Outcomes, bodies: list[bytes], properties: bytes = b"") -> PutRun:
    """A run of puts that all have these properties."""
    run = PutRun.of(Confirmation(outcomes), bodies[0], properties, PLAIN)
    for body in bodies[1:]:
        run.join(PutRun.of(Confirmation(outcomes), body, properties, PLAIN))
    return run


def test_runs_that_wait_together_leave_together() -> None:
    """Those with properties and those without are one frame, each with its own."""
    outcomes = Outcomes()
    named = pack_properties(None, "a", None)
    inbox = [run_of(outcomes, [b"0", b"1"]), run_of(outcomes, [b"2"], named)]
    inbox.append(run_of(outcomes, [b"3"]))
    (put,) = frames_of(inbox, 1 << 20)
    frame = put.pack(1, 1, 0)
    assert frames.split(frame) == [b"0", b"1", b"2", b"3"]
    assert frames.split_properties(frame) == [b"", b"", named, b""]
    assert (put.count, put.size, put.body_bytes) == (4, 4 + len(named), 4)


def test_a_frame_has_a_bound() -> None:
    """What comes after so many messages begins another."""
    outcomes = Outcomes()
    inbox = [run_of(outcomes, [b"x"] * (PACK_COUNT - 1)), run_of(outcomes, [b"y"] * 2)]
    assert [put.count for put in frames_of(inbox, 1 << 20)] == [PACK_COUNT - 1, 2]


@pytest.mark.real
def test_many_threads_put_at_once(tmp_path: Path) -> None:
    """Every put is stored once, with its own properties and confirmation, each thread's in the
    order of its calls, whoever drains the inbox meanwhile."""
    confirmed: dict[int, list[Confirmation]] = {}

    def work(queue: MirroredQueue, thread: int) -> None:
        confirmed[thread] = [
            queue.put(b"%d %d" % (thread, number), message_id=str(number) if number % 3 else None)
            for number in range(PUTS)
        ]

    with MirroredQueue("q", path=tmp_path) as queue:
        threads = [threading.Thread(target=work, args=(queue, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        sequences = {
            thread: [confirmation.result(60) for confirmation in made]
            for thread, made in confirmed.items()
        }
        stored = {message.sequence: message for message in queue.browse(count_max=THREADS * PUTS)}
    assert len(stored) == THREADS * PUTS
    for thread, numbers in sequences.items():
        assert numbers == sorted(numbers)
        for number, sequence in enumerate(numbers):
            assert stored[sequence].body == b"%d %d" % (thread, number)
            assert stored[sequence].message_id == (str(number) if number % 3 else None)
