"""The check at the end of the demo: every row of the source against every delivery.

The check reads the source again and ignores the queue: each confirmed message must have been
delivered, byte for byte, and each repeat must have been flagged.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from mirrorq.demo.records import Confirmed, Taken
from mirrorq.demo.source import digest


@define
class Findings:
    """Results of the check, in rows or deliveries."""

    rows: int = 0
    """Rows of the source."""
    confirmed: int = 0
    delivered: int = 0
    """Rows delivered at least once and unchanged."""
    lost: int = 0
    """Confirmed rows without an unchanged delivery."""
    altered: int = 0
    """Deliveries whose body is no row of the source."""
    duplicates_flagged: int = 0
    """Repeats with `redelivered`, at the sequence of the first delivery: at least once."""
    duplicates_unflagged: int = 0
    """Repeats without `redelivered`, or stored twice."""
    misplaced: int = 0
    """First deliveries behind a higher sequence, or not at the confirmed sequence."""

    @property
    def is_good(self) -> bool:
        """True if the queue kept its promises."""
        return not (self.lost or self.altered or self.duplicates_unflagged or self.misplaced)


def check(
    source: Iterable[bytes], confirmed: Iterable[Confirmed], taken: Iterable[Taken]
) -> Findings:
    """Compare the source with the confirms and the deliveries.

    Args:
        source: the messages as they were to be sent, read again.
        confirmed: the producer's confirms.
        taken: the consumer's deliveries, in order.
    """
    digests = [digest(row) for row in source]
    findings = Findings(rows=len(digests))
    promised: dict[int, int] = {}
    for record in confirmed:
        for index in range(record.rows):
            promised[record.first_number + index] = record.first_sequence + index
    came = _deliveries(digests, taken, findings)
    findings.confirmed = len(promised)
    findings.delivered = len(came)
    for number, sequence in promised.items():
        if number not in came:
            findings.lost += 1
        elif came[number] != sequence:
            findings.misplaced += 1
    return findings


def _deliveries(digests: list[bytes], taken: Iterable[Taken], findings: Findings) -> dict[int, int]:
    """Return number -> sequence of its first delivery; count faults on the way."""
    came: dict[int, int] = {}
    highest = 0
    for delivery in taken:
        number = delivery.number
        if not 0 <= number < len(digests) or digests[number] != delivery.digest:
            findings.altered += 1
            continue
        first = came.get(number)
        if first is None:
            came[number] = delivery.sequence
        elif delivery.redelivered and delivery.sequence == first:
            findings.duplicates_flagged += 1
        else:
            findings.duplicates_unflagged += 1
        if not delivery.redelivered:
            findings.misplaced += delivery.sequence < highest
            highest = max(highest, delivery.sequence)
    return came


def failover_ms(confirms_ms: Iterable[int], killed_ms: int) -> int:
    """Return how long a kill kept confirms away.

    Confirms of the dead master may still be under way at its death, so the first confirm after the
    kill may be its last. The longest silence that ends after the kill counts.

    Args:
        confirms_ms: times of confirms, in any order.
        killed_ms: time of the process's end.

    Returns:
        Milliseconds from the kill to the end of that silence; 0 without a confirm after the kill.
    """
    longest = end = 0
    last = killed_ms
    for at in sorted(at for at in confirms_ms if at > killed_ms):
        if at - last > longest:
            longest, end = at - last, at - killed_ms
        last = at
    return end
