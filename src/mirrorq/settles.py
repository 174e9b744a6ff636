"""The way of acks and nacks into the session, and of their outcomes back.

What comes together in a round is one request; when parts of it are refused, only those whose
message was refused are told so.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.confirmation import Settlement
from mirrorq.errors import AckRefused
from mirrorq.message import Message, pieces_of
from mirrorq.messages import HandOut
from mirrorq.session import Session, SettleCall, SettleDone

__all__ = ["PieceSettle", "Settle", "error_of", "finish", "offer", "refuse"]


class Settle:
    """One call of a user, in the inbox."""

    __slots__ = ("again", "delay_ms", "kind", "messages", "settlement", "target")

    def __init__(
        self,
        kind: str,
        messages: Sequence[Message],
        settlement: Settlement,
        delay_ms: int = 0,
        target: int = 0,
    ) -> None:
        self.kind = kind
        self.delay_ms = delay_ms
        self.target = target
        self.again = [message for message in messages if message._is_settled]
        """What this handle had settled before: it is refused here, and the master, to whom it
        would look like a request that comes twice, is not asked."""
        self.messages = [m for m in messages if not m._is_settled] if self.again else messages
        self.settlement = settlement
        for message in messages:
            message._is_settled = True


class PieceSettle:
    """Hand-outs that are settled by their names, without messages."""

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self.refused: tuple[HandOut, ...] = ()
        self.why = ""

    def end(self, done: SettleDone) -> None:
        """Note the outcome. With the outcomes' lock held."""
        self.refused, self.why = done.refused, done.why
        self.settlement._finish(None, None)


def offer(session: Session, items: Sequence[Settle]) -> None:
    """Hand calls to the session: all acks as one, all nacks of one delay as one."""
    alike: dict[tuple[str, int, int], list[Settle]] = {}
    for item in items:
        alike.setdefault((item.kind, item.delay_ms, item.target), []).append(item)
    for (kind, *terms), chosen in sorted(alike.items(), key=lambda pair: pair[0]):
        messages = [message for item in chosen for message in item.messages]
        session.settle(SettleCall(chosen, kind, tuple(pieces_of(messages)), *terms))


def refuse(items: Sequence[Settle], why: str) -> None:
    """The handle is closed. With the outcomes' lock held."""
    for item in items:
        item.settlement._finish(None, AckRefused(why))


def finish(done: SettleDone) -> None:
    """Note the outcome of what `offer` has sent. With the outcomes' lock held."""
    items = done.token
    if isinstance(items, PieceSettle):
        items.end(done)
        return
    assert isinstance(items, list)
    for item in items:
        assert isinstance(item, Settle)
        item.settlement._finish(None, error_of(item, done) if done.refused or item.again else None)


def error_of(item: Settle, done: SettleDone) -> AckRefused | None:
    """What a user is told of the parts that were not taken; None when all were."""
    refused = [message for message in item.messages if _is_among(message, done.refused)]
    why = done.why
    if item.again:
        refused += item.again
        why = why or "it was settled before, or only browsed"
    if not refused:
        return None
    return AckRefused(
        f"the {item.kind} of {len(refused)} of {len(item.messages) + len(item.again)} "
        f"message(s), the first of them {refused[0].sequence} of queue {refused[0].queue!r}, "
        f"was not taken: {why}"
    )


def _is_among(message: Message, pieces: Sequence[HandOut]) -> bool:
    handout, sequence = message._chunk.handout, message.sequence
    return any(
        (piece.epoch, piece.number) == (handout.epoch, handout.number)
        and piece.first <= sequence <= piece.last
        for piece in pieces
    )
