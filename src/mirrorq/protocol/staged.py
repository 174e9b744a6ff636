"""Staged publishing: ops on messages invisible before their commit.

A *transaction* is a permanent name, with a *version* which grows: a stream and its batch, a job and
0. A *run* is one try of a driver to write a version; its name is used once. An *attempt* is one try
of a run's task; the attempt stages *chunks*, numbered from 1. The driver names the valid attempts,
the *winners*.
"""

from __future__ import annotations

from msgspec import Struct

DONE = "committed already"
"""Start of a refusal which is a success for a task, and for a driver with an earlier commit."""
PAST = "never committed"
"""Start of a refusal of an uncommitted version below the highest committed version: none of its
messages is or will be in the queue."""
FENCED = "fenced"
"""Start of a refusal which holds for the run for ever."""
SEALED = "sealed"
"""Start of a refusal by a sealed run."""
WAIT = "not now"
"""Start of a refusal without fencing, to be retried soon: the queue is full."""

Winner = tuple[int, int, int, int]
"""(partition, attempt, chunks, messages): an attempt, and its totals of staged data."""


class Stage(Struct, frozen=True, gc=False):
    """The first body of a chunk: its messages stay invisible until a commit."""

    transaction: str
    version: int
    run: str
    partition: int
    attempt: int
    chunk: int
    """Number of the chunk within the attempt, from 1."""


class SealOp(Struct, frozen=True, gc=False):
    """The run's winners wait for the decision of another queue, without a time limit."""

    transaction: str
    version: int
    run: str
    winners: tuple[Winner, ...]
    home: int
    """Id of the deciding queue."""


class CommitOp(Struct, frozen=True, gc=False):
    """A run's winners become messages, in this order. All other staged data of the version, and of
    earlier versions, is dropped."""

    transaction: str
    version: int
    run: str
    winners: tuple[Winner, ...] = ()
    sequence: int = 0
    """Sequence of the op itself; the messages stand behind. 0 in a request."""
    count: int = 0
    """Number of messages. 0 in a request."""
    others: tuple[int, ...] = ()
    """Ids of queues with the run sealed: they get a commit too."""
    is_decision: bool = False
    """The decision comes from another queue: the winners are the sealed ones here."""


class AbortOp(Struct, frozen=True, gc=False):
    """A run will never be committed: its staged data is dropped, and the run is fenced."""

    transaction: str
    version: int
    run: str
    reason: str = "aborted"
    """aborted, expired, undecided."""
    others: tuple[int, ...] = ()
    """Ids of queues, as in CommitOp."""
    is_decision: bool = False
    """The decision comes from another queue: the abort holds for a sealed run too."""


class AskOp(Struct, frozen=True, gc=False):
    """A queue with a sealed run asks the deciding queue.

    In its own log: the question goes into its outbox. In the log of the deciding queue: an
    undecided run is fenced. In any case the deciding queue tells the asker to give the run up; a
    commit of the run was sent before."""

    transaction: str
    version: int
    run: str
    asker: int
    """Id of the asking queue."""


class CrossQueueTask(Struct, frozen=True, gc=False):
    """A command or question from a queue to another, through the outbox."""

    what: str
    """commit, abort, ask."""
    transaction: str
    version: int
    run: str

    def op(self, asker: int) -> CommitOp | AbortOp | AskOp:
        """Return the op for the other queue."""
        name = (self.transaction, self.version, self.run)
        if self.what == "commit":
            return CommitOp(*name, is_decision=True)
        if self.what == "abort":
            return AbortOp(*name, "the queue that decides says so", is_decision=True)
        return AskOp(*name, asker)


Staging = SealOp | CommitOp | AbortOp | AskOp
"""Requests of a driver, or of another queue; each becomes an op."""
