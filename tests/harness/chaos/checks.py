"""What must hold of a history, in Jepsen's words.

    attempt       a put was called
    acknowledged  it was confirmed, or accepted by a spool
    ok            acknowledged, and delivered
    lost          acknowledged, and never delivered though the queue was drained: must be 0
    unexpected    delivered and never attempted, or certainly not stored, or at another sequence
                  than was confirmed, or with another body: must be 0
    duplicated    more than one delivery of a message says that it is the first, or two have the
                  same count: must be 0. Repeats that say so are counted as `repeated`
    recovered     of unknown outcome, and delivered: allowed, that is what unknown means
    unresolved    a worker that was never killed was left without an outcome: must be 0
    undone        handed out anew after its ack had resolved: must be 0
    misplaced     a producer's later put has the lower sequence; one sequence has two messages

`undone` needs care, because clients see when a message *came*: one that was handed out before
may lie in a buffer until its process finds that its connection is gone. So what came with the
acked count, or soon after the ack, is not counted.
"""

from __future__ import annotations

from attrs import asdict, define, field

from harness.chaos.history import Delivery, History

__all__ = ["Findings", "check"]

STALE_MS = 5000
"""A buffered message may still come out for so long after it was given to somebody else."""
EXAMPLES_MAX = 5


@define
class Findings:
    """Counts, and examples of what must not be."""

    attempts: int = 0
    acknowledged: int = 0
    ok: int = 0
    lost: int = 0
    unexpected: int = 0
    duplicated: int = 0
    repeated: int = 0
    recovered: int = 0
    refused: int = 0
    unknown: int = 0
    unresolved: int = 0
    undone: int = 0
    misplaced: int = 0
    acked: int = 0
    acks_refused: int = 0
    wrong: list[str] = field(factory=list)

    def note(self, what: str, text: str) -> None:
        """Count something that must not be."""
        setattr(self, what, getattr(self, what) + 1)
        if getattr(self, what) <= EXAMPLES_MAX:
            self.wrong.append(f"{what}: {text}")

    def as_record(self) -> dict[str, object]:
        return asdict(self)


def check(
    history: History, mortal: frozenset[str] = frozenset(), *, is_drained: bool = True
) -> Findings:
    """Judge a history.

    Args:
        history: of all workers.
        mortal: workers whose processes were killed: they may lack outcomes.
        is_drained: the queue was empty at the end, and all else was over; when it was not,
            nothing can be called lost or unresolved.
    """
    found = Findings(attempts=len(history.attempts), acks_refused=history.acks_refused)
    found.acked = len(history.acked)
    for text in history.strange:
        found.note("unexpected", text)
    _check_puts(history, mortal, found, is_drained)
    _check_order(history, found)
    for value, deliveries in history.deliveries.items():
        _check_deliveries(history, value, deliveries, found)
    return found


def _check_puts(
    history: History, mortal: frozenset[str], found: Findings, is_drained: bool
) -> None:
    for value, attempt in history.attempts.items():
        outcomes = attempt.outcomes
        is_delivered = value in history.deliveries
        if len(outcomes) > 1:
            found.note("duplicated", f"{value} has the outcomes {outcomes}")
        if not outcomes and attempt.is_accepted:
            found.acknowledged += 1
            found.ok += is_delivered
            if is_drained and not is_delivered:
                found.note("lost", f"{value}, accepted by a spool")
        elif not outcomes:
            found.recovered += is_delivered
            if is_drained and attempt.worker not in mortal:
                found.note("unresolved", f"{value} of {attempt.worker}")
        elif "o" in outcomes:
            found.acknowledged += 1
            found.ok += is_delivered
            if is_drained and not is_delivered:
                found.note("lost", f"{value}, sequence {attempt.sequences[0]}")
        elif "n" in outcomes:
            found.refused += 1
        else:
            found.unknown += 1
            found.recovered += is_delivered


def _check_order(history: History, found: Findings) -> None:
    at: dict[int, str] = {}
    last: dict[str, tuple[int, int, str]] = {}
    for value in history.attempts:
        producer, _, number = value.rpartition(".")
        for sequence in _places(history, value)[:1]:
            before = last.get(producer)
            if before is not None and before[0] < int(number) and before[1] >= sequence:
                found.note("misplaced", f"{value} is at {sequence}, {before[2]} at {before[1]}")
            last[producer] = (int(number), sequence, value)
            _claim(at, sequence, value, found)
    for value, deliveries in history.deliveries.items():
        for each in deliveries[:1]:
            _claim(at, each.sequence, value, found)


def _places(history: History, value: str) -> list[int]:
    """Where it was confirmed to be; of what a spool has accepted, where it was delivered."""
    attempt = history.attempts[value]
    if attempt.sequences or not attempt.is_accepted:
        return attempt.sequences
    return [each.sequence for each in history.deliveries.get(value, ())]


def _claim(at: dict[int, str], sequence: int, value: str, found: Findings) -> None:
    if at.setdefault(sequence, value) != value:
        found.note("misplaced", f"sequence {sequence} is {at[sequence]} and {value}")


def _check_deliveries(
    history: History, value: str, deliveries: list[Delivery], found: Findings
) -> None:
    attempt = history.attempts.get(value)
    if attempt is None:
        found.note("unexpected", f"{value} was never attempted")
    elif "n" in attempt.outcomes:
        found.note("unexpected", f"{value} was certainly not stored, and came")
    sequences = {each.sequence for each in deliveries} | set(attempt.sequences if attempt else ())
    if len(sequences) > 1:
        found.note("unexpected", f"{value} is at the sequences {sorted(sequences)}")
    firsts = [each for each in deliveries if not each.redelivered]
    if len(firsts) > 1:
        found.note("duplicated", f"{value} came twice unflagged: {firsts}")
    counts = sorted(each.count for each in deliveries)
    if len(set(counts)) < len(counts):
        found.note("duplicated", f"{value} came twice with one count: {counts}")
    found.repeated += len(deliveries) - 1
    acked = history.acked.get(value)
    if acked is not None:
        late = [d for d in deliveries if d.count > acked[1] and d.ms > acked[0] + STALE_MS]
        if late:
            found.note("undone", f"{value} was acked {acked}, and came again: {late[0]}")
