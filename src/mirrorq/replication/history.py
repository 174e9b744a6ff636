"""A queue's epochs and the last lsn of each, by which two logs find where they part (R6). Pure."""

from __future__ import annotations

from collections.abc import Iterable

HISTORY_COUNT = 1024
"""Epochs that a history keeps. A node that was away for more epochs with ops takes the whole
state."""


def common_lsn(mine: list[tuple[int, int]], theirs: Iterable[tuple[int, int]]) -> int:
    """The greatest lsn at which both histories name the same epoch; 0 without such an lsn."""
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
    """Note that the op at `lsn`, the next op, was made in `epoch`.

    Of epochs with only stable ops the newest are kept. Two logs without a shared epoch share
    nothing that is known: one log is made again from scratch (R6).

    Args:
        stable: last stable lsn. Its epoch and later epochs are always kept: every member in sync
            has the op (Lemma 1).
    """
    if history and history[-1][0] == epoch:
        history[-1] = (epoch, lsn)
        return
    history.append((epoch, lsn))
    while len(history) > HISTORY_COUNT and history[0][1] < stable:
        del history[0]
