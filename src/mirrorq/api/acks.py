"""Acks and nacks on their way into the session, and their outcomes on the way back.

Acks that come together in a round become one request. When the master refuses a part of the
request, only the callers of the refused messages get the refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.api.confirmation import Settlement
from mirrorq.api.message import Message, MessageRun, messages_in, names_of, runs_of
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import AckRefused, ConfirmUnknown, MirrorQError
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.calls import EXTEND, SettleCall, SettleDone
from mirrorq.session.machine import Session


class Settle:
    """One call of a user that acks or returns messages, with its messages and its settlement. Made
    by the user's thread; in the inbox and later it belongs to the host's thread."""

    __slots__ = ("again", "delay_ms", "kind", "runs", "settlement", "target")

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
        self.again: list[Message] = []
        """Messages that the handle had settled before. They are refused here, because the master
        would take them for a repeated request."""
        self.runs = runs_of(messages)
        self.settlement = settlement
        for run in self.runs:
            if run.chunk.settled.find(1, run.start, run.stop) >= 0:
                self.again = [message for message in messages if message._is_settled]
                self.runs = runs_of([message for message in messages if not message._is_settled])
                break

    def mark(self) -> None:
        """Mark the messages as settled for users. Called when the item is in the inbox."""
        for run in self.runs:
            run.chunk.settled[run.start : run.stop] = b"\1" * (run.stop - run.start)

    def drop_settled(self) -> None:
        """Leave out messages that were settled before, unknown to their users. Host's thread."""
        before = _take(self.runs)
        if 1 in before:
            pairs = list(zip(messages_in(self.runs), before, strict=True))
            self.again += [message for message, was_taken in pairs if was_taken]
            self.runs = runs_of([message for message, was_taken in pairs if not was_taken])

    @property
    def count(self) -> int:
        """Number of messages that the call settles."""
        return sum(run.stop - run.start for run in self.runs)


class Acks:
    """Acks of single messages that came together, each with an outcome of its own. Made from the
    inbox, and held by the session until all have ended. Host's thread."""

    __slots__ = ("messages", "runs", "settlements")
    kind = "ack"
    delay_ms = target = 0

    def __init__(self, acks: Sequence[tuple[Message, Settlement]]) -> None:
        self._set(acks)
        before = _take(self.runs)
        if 1 in before:
            for (message, settlement), was_taken in zip(acks, before, strict=True):
                if was_taken:
                    settlement._finish(None, _refusal(message, AGAIN))
            pairs = zip(acks, before, strict=True)
            self._set([pair for pair, was_taken in pairs if not was_taken])

    def _set(self, acks: Sequence[tuple[Message, Settlement]]) -> None:
        self.messages: tuple[Message, ...] = ()
        self.settlements: tuple[Settlement, ...] = ()
        if acks:
            self.messages, self.settlements = zip(*acks, strict=True)
        self.runs = runs_of(self.messages)

    def note_outcomes(self, done: SettleDone) -> None:
        """Note the outcomes."""
        if not done.refused:
            callbacks = self.settlements[0]._outcomes.callbacks
            for settlement in self.settlements:
                settlement._is_done = True
                if callbacks:
                    settlement._finish(None, None)
            return
        # The runs name the messages in order, including deliveries of a new master.
        left = zip(self.messages, self.settlements, strict=True)
        for run in self.runs:
            refused = set(_among(run, done))
            for sequence in range(run.chunk.first + run.start, run.chunk.first + run.stop):
                message, settlement = next(left)
                error = _outcome_of(message, done) if sequence in refused else None
                settlement._finish(None, error)
                if isinstance(error, AckRefused):
                    _tell(message, error)

    def refuse(self, why: str) -> None:
        """Refuse all acks: the handle is closed."""
        for settlement in self.settlements:
            settlement._finish(None, AckRefused(why))


def _take(runs: Sequence[MessageRun]) -> bytes:
    """Return one byte per message of the runs, in order: 1 if a settlement was taken before."""
    return b"".join([run.chunk.take_settlements(run.start, run.stop) for run in runs])


AGAIN = "it was settled before, or only browsed: ack each message that get() returns once"
ENDS = ("ack", "reject")
"""Kinds whose refusals are reported to listeners. A nack has no effect to undo."""


def _tell(message: Message, error: AckRefused) -> None:
    """Report a message whose ack was refused to the listeners."""
    outcomes = message._chunk.handle.outcomes
    for listener in outcomes.ack_listeners:
        outcomes.call_back(listener, message, error)


def _outcome_of(message: Message, done: SettleDone) -> MirrorQError:
    if done.is_unknown:
        return ConfirmUnknown(
            f"it is not known whether the ack of message {message.sequence} of queue "
            f"{message.queue!r} took effect: {done.why}"
        )
    return _refusal(message, done.why)


def _refusal(message: Message, why: str) -> AckRefused:
    return AckRefused(
        f"the ack of message {message.sequence} of queue {message.queue!r} was refused: {why}"
    )


class PieceSettle:
    """A settlement of deliveries by their names, without messages, for a lease. The host's thread
    notes the refused deliveries before the settlement ends; the waiting caller reads them."""

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self.pieces: tuple[Delivery, ...] = ()
        """The deliveries that were sent; set once."""
        self.refused: tuple[Delivery, ...] = ()
        self.why = ""

    def note_outcome(self, done: SettleDone) -> None:
        """Note the outcome."""
        if done.is_unknown:
            self.settlement._finish(None, ConfirmUnknown(f"the outcome is not known: {done.why}"))
            return
        self.refused, self.why = done.refused, done.why
        self.settlement._finish(None, None)


class Extending(PieceSettle):
    """A request to hold a message for a time of its own."""

    def __init__(self, message: Message, settlement: Settlement) -> None:
        super().__init__(settlement)
        self._message = message

    def offer(self, session: Session | None, duration_ms: int) -> None:
        """Hand the request to the session. On the host's thread."""
        if session is None or session.closed:
            self.refuse("" if session is None else session.closed)
            return
        pieces = tuple(names_of(runs_of((self._message,))))
        session.settle(SettleCall(self, EXTEND, pieces, duration_ms))

    def note_outcome(self, done: SettleDone) -> None:
        """Note the outcome."""
        if done.refused or done.is_unknown:
            self.refuse(done.why)
        else:
            self.settlement._finish(None, None)

    def refuse(self, why: str) -> None:
        """End the request as refused. An unknown outcome of a closed handle counts as refused,
        because the handle's messages are released."""
        text = f"message {self._message.sequence} of queue {self._message.queue!r} was not extended"
        self.settlement._finish(None, AckRefused(f"{text}: {why}"))


def offer(session: Session, items: Sequence[Settle | Acks]) -> None:
    """Hand calls to the session: all acks as one, all nacks of one delay as one."""
    alike: dict[tuple[str, int, int], list[Settle | Acks]] = {}
    for item in items:
        alike.setdefault((item.kind, item.delay_ms, item.target), []).append(item)
    for (kind, *terms), chosen in sorted(alike.items(), key=lambda pair: pair[0]):
        runs = [run for item in chosen for run in item.runs]
        session.settle(SettleCall(chosen, kind, tuple(names_of(runs)), *terms))


def refuse(items: Sequence[Settle], why: str) -> None:
    """Refuse calls: the handle is closed."""
    for item in items:
        item.settlement._finish(None, AckRefused(why))


def finish(done: SettleDone) -> None:
    """Note the outcome of a request that `offer` has sent."""
    items = done.token
    if isinstance(items, PieceSettle):
        items.note_outcome(done)
        return
    assert isinstance(items, list)
    for item in items:
        if isinstance(item, Acks):
            item.note_outcomes(done)
            continue
        assert isinstance(item, Settle)
        error = error_of(item, done) if done.refused or item.again else None
        item.settlement._finish(None, error)
        if isinstance(error, AckRefused) and item.kind in ENDS:
            for run in item.runs:
                for sequence in _among(run, done):
                    _tell(Message(run.chunk, sequence - run.chunk.first), error)


def error_of(item: Settle, done: SettleDone) -> MirrorQError | None:
    """Return the error for the refused parts; None when all parts were taken."""
    refused: list[tuple[int, str]] = []
    """(sequence, name of the queue)."""
    for run in item.runs:
        refused += [(sequence, run.chunk.handle.queue_name) for sequence in _among(run, done)]
    why = done.why
    if item.again:
        refused += [(message.sequence, message.queue) for message in item.again]
        why = why or AGAIN
    if not refused:
        return None
    if done.is_unknown:
        return ConfirmUnknown(
            f"it is not known whether the {item.kind} of {item.count} message(s), first "
            f"{refused[0][0]} of queue {refused[0][1]!r}, took effect: {why}"
        )
    (sequence, queue), count = refused[0], item.count + len(item.again)
    if count == 1:
        what = f"message {sequence} of queue {queue!r}"
    else:
        what = f"{len(refused)} of {count} messages, first {sequence} of queue {queue!r},"
    return AckRefused(f"the {item.kind} of {what} was refused: {why}")


def _among(run: MessageRun, done: SettleDone) -> list[int]:
    """Return the sequences of a run that were refused."""
    mine, found = run.delivery, RangeSet()
    for piece in done.refused:
        first, last = max(piece.first, mine.first), min(piece.last, mine.last)
        if (piece.epoch, piece.number) == (mine.epoch, mine.number) and first <= last:
            found.add(first, last)
    return [sequence for first, last in found for sequence in range(first, last + 1)]
