"""The driver's part of a write: one commit, or an abort, of what tasks have staged.

Spark begins a process of its own for it, so PyArrow is not loaded here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirrorq import bulk
from mirrorq.bulk.staging import Staged, StagedPart
from pyspark_mirrorq.addresses import deciding_queue
from pyspark_mirrorq.cluster import connected
from pyspark_mirrorq.options import Options

__all__ = ["abort", "commit"]

log = logging.getLogger("pyspark_mirrorq")

COMMIT_S = 120.0
"""How long the queues may take to commit: a failover fits in."""


@contextmanager
def _driver(options: Options, parts: Sequence[StagedPart]) -> Iterator[Staged | None]:
    """The driver's side of a run; None when there is nothing to commit."""
    if not parts:
        yield None
        return
    first = parts[0]
    with connected(options) as client:
        queue = deciding_queue(client, options, parts)
        if queue is None:
            yield None
            return
        with bulk.staged(client, first.transaction, first.version, queue, run=first.run) as staged:
            yield staged


def commit(options: Options, parts: Sequence[StagedPart]) -> None:
    with _driver(options, parts) as staged:
        if staged is None or not staged.commit(parts, COMMIT_S).already:
            return
    log.warning(
        "txnAppId %r has committed version %d before: this write adds nothing. That is right when "
        "a batch is repeated. A query with a new checkpoint begins at 0: give it another txnAppId",
        parts[0].transaction,
        parts[0].version,
    )


def abort(options: Options, parts: Sequence[StagedPart]) -> None:
    """After a commit, whose outcome the caller may not have heard, this does nothing."""
    with _driver(options, parts) as staged:
        if staged is not None:
            staged.abort(parts, COMMIT_S)
