"""What became of the numbers of one producer. Pure."""

from __future__ import annotations

from attrs import define, field

from mirrorq.containers.ranges import RangeSet

__all__ = ["LOST", "REFUSED", "Producer"]

REFUSED = 0
"""First sequence of an outcome that is a refusal."""
LOST = -1
"""The same of what was stored, and has since been lost."""


@define
class Producer:
    """One producer id: the highest number in the applied log and what became of each."""

    highest: int = 0
    settled: int = 0
    outcomes: list[tuple[int, int, int, str]] = field(factory=list)
    """(first number, count, first sequence or REFUSED, reason), in order of number."""
    used_us: int = 0
    """Timestamp of the last op that named it; decides about expiry."""

    def note(self, first: int, count: int, sequence: int, reason: str, settled: int) -> None:
        """Record the outcome of numbers first to first + count - 1."""
        self.highest = max(self.highest, first + count - 1)
        self.settled = max(self.settled, settled)
        outcomes = self.outcomes
        if outcomes and sequence != REFUSED:
            before = outcomes[-1]
            joins = before[0] + before[1] == first and before[2] + before[1] == sequence
            if joins and before[2] > REFUSED:
                outcomes[-1] = (before[0], before[1] + count, before[2], "")
                count = 0
        if count:
            outcomes.append((first, count, sequence, reason))
        self._forget_settled()

    def _forget_settled(self) -> None:
        keep = 0
        for first, count, _, _ in self.outcomes:
            if first + count - 1 > self.settled:
                break
            keep += 1
        if keep:
            del self.outcomes[:keep]

    def outcomes_of(self, first: int, last: int) -> list[tuple[int, int, int, str]]:
        """What became of first to last, as far as it is kept."""
        found = []
        for start, count, sequence, reason in self.outcomes:
            low, high = max(first, start), min(last, start + count - 1)
            if low <= high:
                shifted = sequence + low - start if sequence > REFUSED else sequence
                found.append((low, high - low + 1, shifted, reason))
        return found

    def has_some_of(self, lost: RangeSet) -> bool:
        """Whether some of these sequences are in its outcomes."""
        return any(
            sequence > REFUSED and lost.around(sequence, sequence + count - 1) is not None
            for _, count, sequence, _ in self.outcomes
        )

    def lose(self, lost: RangeSet, reason: str) -> None:
        """These sequences are lost: who asks again what became of them must not hear a confirm."""
        kept, self.outcomes = self.outcomes, []
        for outcome in kept:
            first, count, sequence, why = outcome
            gone = lost.within(sequence, sequence + count - 1) if sequence > REFUSED else []
            if not gone:
                self.outcomes.append(outcome)
                continue
            begin = sequence
            for low, high in gone:
                if begin < low:
                    self.outcomes.append((first + begin - sequence, low - begin, begin, why))
                self.outcomes.append((first + low - sequence, high - low + 1, LOST, reason))
                begin = high + 1
            if begin < sequence + count:
                rest = sequence + count - begin
                self.outcomes.append((first + begin - sequence, rest, begin, why))
