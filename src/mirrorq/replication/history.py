"""A queue's epochs and the last lsn of each, by which two logs find where they part (R6). Pure."""

from __future__ import annotations

from collections.abc import Iterable

HISTORY_COUNT = 1024
"""Epochs that a history keeps: a node that comes back after so many views of a queue, in each of
which something was written, takes the whole state."""


def common_lsn(mine: list[tuple[int, int]], theirs: Iterable[tuple[int, int]]) -> int:
    """The greatest lsn at which both histories name the same epoch; 0 when there is none."""
    last_of = dict(mine)
    best = 0
    for epoch, last in theirs:
        if epoch in last_of:
            best = max(best, min(last, last_of[epoch]))
    return best


def cut_history(history: list[tuple[int, int]], lsn: int) -> list[tuple[int, int]]:
    """The history of the log cut to `lsn`."""
    kept = []
    before = 0
    for epoch, last in history:
        if before < lsn:
            kept.append((epoch, min(last, lsn)))
        before = last
    return kept


def extend_history(history: list[tuple[int, int]], epoch: int, lsn: int, stable: int) -> None:
    """Note that the op at `lsn`, the next one, was made in `epoch`.

    Of epochs whose ops are all stable the newest are kept: two logs that share none of these share
    nothing that is known, and one of them is made anew (R6).

    Args:
        stable: what is stable by now. The epoch of that op is always kept, and so are later ones:
            every member in sync has it (Lemma 1).
    """
    if history and history[-1][0] == epoch:
        history[-1] = (epoch, lsn)
        return
    history.append((epoch, lsn))
    while len(history) > HISTORY_COUNT and history[0][1] < stable:
        del history[0]
