"""Messages that are acked together with the put of their result, for a swarm: `ack_and_put` and
transactions.

    source = Chain(cluster, random, "chain", queue_id, counts, pace=1)
    source.target = Drain(cluster, random, "results", results_id, counts, pace=1)

What must hold: a message has one result when its ack was taken, and none before. So in the end,
when all are acked, each has exactly one, wherever masters died.
"""

from __future__ import annotations

from typing import Any

from harness.load import Load
from harness.workload import Attempt, Consumer, Dispatch, Journal, Place
from mirrorq.protocol.ops import FLAG_STEP, Step
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.calls import Failed, Output, Put, SettleCall, Stored
from mirrorq.wire import frames
from mirrorq.wire.ops import encode_step

__all__ = ["DONE", "Chain", "Drain", "Mover", "unpaired"]

DONE = b">"
"""A result is this and the body of its message."""
SLOWER = 6
"""How many times slower than other queues it is filled: each step is an op of its own."""


class Mover(Consumer):
    """Acks each message together with a put of its result, into `target` or the same queue."""

    target = 0

    def __init__(self, place: Place, journal: Journal, nack_share: float = 0.1) -> None:
        self.results = journal
        """Of the queue to which results go."""
        super().__init__(place, journal, nack_share)

    def _settle(self, piece: Delivery, dispatch: Dispatch) -> None:
        if not self.is_alive or self.cluster.now_ms < self.paused_until_ms:
            super()._settle(piece, dispatch)
            return
        if dispatch.body.startswith(DONE):
            super()._settle(piece, dispatch)
            return
        self._unsettled -= 1
        if self.random.random() < self.nack_share:
            self.session.settle(SettleCall(None, "nack", (piece,)))
            self.poke()
            return
        dispatch.acked = "open"
        body = DONE + dispatch.body
        # Whether this put took effect is seen at the results; it may be tried more than once.
        self.results.attempts.setdefault(body, Attempt(body, "result", 0, self.cluster.now_ms))
        bodies = [encode_step(Step(((piece.first, piece.last),), self.target)), body]

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            return frames.pack_publish(
                bodies,
                producer=producer,
                first_number=first_number,
                settled=settled,
                flags=FLAG_STEP,
            )

        self.session.put(Put(dispatch, 2, len(body), pack, True, 0, (piece,)))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            if isinstance(output, Stored | Failed):
                dispatch: Any = output.token
                if isinstance(output, Stored):
                    dispatch.acked = "ok"
                    self.journal.resolved_ms.setdefault(dispatch.sequence, self.cluster.now_ms)
                elif not self.is_open or output.unknown:
                    dispatch.acked = "lost"
                else:
                    dispatch.acked = "refused"


class Drain(Load):
    """A queue that others fill: it has consumers only, and is neither purged nor deleted."""

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        self._producer_count = 0
        self._purge_share = self._delete_share = 0.0


class Chain(Load):
    """A queue whose consumers are movers."""

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        self._producer_count = 1
        self._pace *= SLOWER
        self._purge_share = self._delete_share = 0.0
        self.target: Load = self
        """Where results go: another queue, or this one."""

    def _new_consumer(self, node: str, share: float) -> Consumer:
        mover = Mover(self._place_on(node, "m"), self.life.journal, share)
        mover.target = 0 if self.target is self else self.target.life.queue_id
        mover.results = self.target.life.journal
        return mover


def unpaired(source: Journal, results: Journal) -> list[str]:
    """Each message of the source has its result once, after a drain of both queues; and was
    handed out no more when its result was there."""
    places: dict[bytes, set[int]] = {}
    since_ms: dict[bytes, int] = {}
    for dispatch in results.deliveries:
        if dispatch.body.startswith(DONE):
            body = dispatch.body.removeprefix(DONE)
            places.setdefault(body, set()).add(dispatch.sequence)
            since_ms[body] = min(since_ms.get(body, dispatch.time_ms), dispatch.time_ms)
    deliveries = [one for one in source.deliveries if not one.body.startswith(DONE)]
    wanted = dict.fromkeys(one.body for one in deliveries)
    wanted.update(
        dict.fromkeys(
            body
            for body, attempt in source.attempts.items()
            if attempt.state == "acknowledged" and not body.startswith(DONE)
        )
    )
    wrong = [
        f"unpaired: {body!r} has {len(places.get(body, ()))} results"
        for body in wanted
        if len(places.get(body, ())) != 1
    ]
    strangers = [body for body in places if body not in wanted]
    wrong += [f"unpaired: a result of {body!r}, from nowhere" for body in strangers]
    wrong += [
        f"unpaired: {one.body!r} handed out at {one.time_ms} ms, its result was at "
        f"{since_ms[one.body]} ms"
        for one in deliveries
        if one.time_ms > since_ms.get(one.body, one.time_ms)
    ]
    return wrong
