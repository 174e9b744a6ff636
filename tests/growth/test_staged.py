"""A commit of staged messages is judged by sums over its chunks, not by a look at each message."""

from __future__ import annotations

from typing import Any

import pytest

from core.test_master import ONE, Queue
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import Confirmed, Publish, Refused
from mirrorq.protocol.staged import WAIT, CommitOp, Stage, Staging
from mirrorq.replication.events import Defined
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec, encode_staged

from .work import Work, work_of

FEW, MANY = 1_000, 20_000
GROWTH_MAX = 1.5
"""The larger commit has twenty times the messages, in as many chunks: only sums are searched."""
LIMITS: dict[str, dict[str, Any]] = {
    "block": {"max_length": MANY + 1, "max_length_bytes": 1 << 40, "overflow": "block"},
    "reject": {"max_length": MANY + 1, "max_length_bytes": 1 << 40, "overflow": "reject-publish"},
    "drop": {"max_length": MANY + 1, "max_length_bytes": 1 << 40, "overflow": "drop-head"},
    "drop most": {"max_length": MANY, "max_length_bytes": 2_000, "overflow": "drop-head"},
}


class Staged(Queue):
    """A queue of `MANY` ready messages with a run of so many staged ones, each of another size than
    its neighbours."""

    def __init__(self, count: int, **limit: Any) -> None:
        super().__init__(codec=FrameCodec(), first=(Defined(Definition(**limit)),))
        self.sync()
        self.attach(ONE)
        self.heard()
        self.producer, self._number = self.open_producer(), 0
        self.put([b"ready"] * MANY)
        bodies = [bytes(number % 59) for number in range(count)]
        self.staged(Stage("t", 1, "run", 0, 0, 1), bodies)
        self.op = CommitOp("t", 1, "run", ((0, 0, 1, count),))

    def put(self, bodies: list[bytes], flags: int = 0) -> None:
        first, self._number = self._number + 1, self._number + len(bodies)
        frame = pack_publish(
            bodies, producer=self.producer, first_number=first, settled=0, flags=flags
        )
        self.ask(ONE, Publish(frame, True))

    def staged(self, asked: Stage | Staging, bodies: list[bytes]) -> None:
        self.put([encode_staged(asked), *bodies], FLAG_STEP | FLAG_STAGED)
        self.sync()


def work_of_a_commit(count: int, limit: dict[str, Any]) -> tuple[Work, Queue]:
    queue = Staged(count, **limit)
    queue.heard()
    op = queue.op
    return work_of(lambda: queue.put([encode_staged(op)], FLAG_STEP | FLAG_STAGED)), queue


@pytest.mark.parametrize("name", LIMITS)
def test_a_commit_is_judged_without_a_look_at_each_message(name: str) -> None:
    """Whether it waits for room, is refused, or is taken and the oldest make room."""
    few, _ = work_of_a_commit(FEW, LIMITS[name])
    many, queue = work_of_a_commit(MANY, LIMITS[name])
    queue.sync()
    answers = [one for one in queue.heard() if isinstance(one, Confirmed | Refused)]
    assert answers
    if name == "block":
        assert isinstance(answers[0], Refused)
        assert answers[0].reason.startswith(WAIT)
    assert many.count <= few.count * GROWTH_MAX, many.growth_text(few)
