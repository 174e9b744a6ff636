"""Staged publishing: what is said of messages that nobody sees before their commit.

A *transaction* is a name for ever, with a *version* that grows: a stream and its batch, a job and
0. A *run* is one try of one driver to write one version; its name is used once. An *attempt* is one
try of one task of a run; it stages *chunks*, numbered from 1. The driver names the attempts that
count, the *winners*.
"""

from __future__ import annotations

from msgspec import Struct

DONE = "committed already"
"""How a refusal begins that is a success for a task, and for a driver that was here before."""
PAST = "never committed"
"""How a refusal begins of a version below the highest committed one that is not committed itself:
nothing of it is in the queue, nor will be."""
FENCED = "fenced"
"""How a refusal begins that holds for the run for ever."""
SEALED = "sealed"
"""How a refusal begins of what a sealed run does not take."""
WAIT = "not now"
"""How a refusal begins that fences nobody and may be otherwise in a moment: the queue is full."""

Winner = tuple[int, int, int, int]
"""(partition, attempt, chunks, messages): an attempt, and all that it has staged."""


class Stage(Struct, frozen=True, gc=False):
    """The first body of a chunk: its other messages show nothing until a commit."""

    transaction: str
    version: int
    run: str
    partition: int
    attempt: int
    chunk: int
    """Its number within the attempt, from 1."""


class SealOp(Struct, frozen=True, gc=False):
    """These winners of a run wait for the decision of another queue, for as long as it takes."""

    transaction: str
    version: int
    run: str
    winners: tuple[Winner, ...]
    home: int
    """Id of the queue that decides."""


class CommitOp(Struct, frozen=True, gc=False):
    """Winners of a run become messages, in this order, and everything else of this version, and
    of those before it, is dropped."""

    transaction: str
    version: int
    run: str
    winners: tuple[Winner, ...] = ()
    sequence: int = 0
    """Of the op itself; the messages stand behind it. 0 in a request."""
    count: int = 0
    """How many messages. 0 in a request."""
    others: tuple[int, ...] = ()
    """Ids of queues in which the run is sealed: they are told to commit it too."""
    is_decision: bool = False
    """Another queue says so: the winners are those that are sealed here."""


class AbortOp(Struct, frozen=True, gc=False):
    """A run will never be committed: what it has staged is dropped, and it is fenced."""

    transaction: str
    version: int
    run: str
    reason: str = "aborted"
    """aborted, expired, undecided."""
    others: tuple[int, ...] = ()
    """As of CommitOp."""
    is_decision: bool = False
    """Another queue says so: it holds for a sealed run too."""


class AskOp(Struct, frozen=True, gc=False):
    """A queue with a sealed run asks the one that decides.

    In its own log: the question goes into its outbox. In the log of the one that decides: where
    it is undecided the run is fenced, and in any case it tells the asker to give the run up; a
    commit of it was told before."""

    transaction: str
    version: int
    run: str
    asker: int
    """Id of the queue that asks."""


class CrossQueueTask(Struct, frozen=True, gc=False):
    """What one queue tells or asks another, through its outbox."""

    what: str
    """commit, abort, ask."""
    transaction: str
    version: int
    run: str

    def op(self, asker: int) -> CommitOp | AbortOp | AskOp:
        """What is asked of the other queue."""
        name = (self.transaction, self.version, self.run)
        if self.what == "commit":
            return CommitOp(*name, is_decision=True)
        if self.what == "abort":
            return AbortOp(*name, "the queue that decides says so", is_decision=True)
        return AskOp(*name, asker)


Staging = SealOp | CommitOp | AbortOp | AskOp
"""What a driver, or another queue, may ask for; each becomes an op."""
