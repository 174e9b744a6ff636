"""Who is meant: stores, their incarnations, handles."""

from __future__ import annotations

from msgspec import Struct


class StoreId(Struct, frozen=True, gc=False, order=True):
    """One store on one node: what votes in the catalog. A wiped store is another one."""

    node: str
    store: int
    """Random 63-bit identity, made when the store is created."""


class MemberId(Struct, frozen=True, gc=False, order=True):
    """One incarnation of one store: what stands in a view."""

    node: str
    store: int
    incarnation: int
    """Grows at each start of the node, from `first_incarnation` on: `incarnation_after`."""


def first_incarnation(store: int) -> int:
    """The number of a store's first incarnation: another one for each store.

    A connection names the node and the incarnation. Did each store begin with 1, what the
    first incarnation of an empty store says would be taken for the word of a lost one of its name.
    """
    return (store & 0x3FFF_FFFF) + 1


_CHANCE_BITS = 20
_STEPS_MAX = 1_024
"""So many starts of a copy that is kept out go on by one each (`incarnation_after`)."""


def incarnation_after(previous: int, chance: int, known: int | None = None) -> int:
    """The number of a store's next incarnation.

    Its low bits are random, so that an earlier copy of the store, put in its place, goes on with
    another number than the store did (`is_set_back`). However often such a copy is started and
    kept out: its numbers stay beside that one.

    Args:
        chance: random, of 20 bits at least.
        known: the last incarnation that a cluster has taken in, as far as the store knows.
    """
    if known not in (None, previous):
        return previous + 1
    return (previous >> _CHANCE_BITS) + 1 << _CHANCE_BITS | chance & (1 << _CHANCE_BITS) - 1


def is_set_back(incarnation: int, known: int) -> bool:
    """Whether an incarnation of a store has begun from an earlier copy of it.

    Args:
        known: the last incarnation of the same store that its cluster has heard of.
    """
    if incarnation < known:
        return True
    is_beside = incarnation >> _CHANCE_BITS == known >> _CHANCE_BITS
    return is_beside and incarnation - known > _STEPS_MAX


class SessionId(Struct, frozen=True, gc=False, order=True):
    """One handle. It lives on `node` and never moves to another."""

    node: str
    incarnation: int
    number: int


def connection_of(session: SessionId, key: str = "") -> str:
    """The connection that a handle belongs to: one client, or one incarnation of a node.

    A client's own sessions are of incarnation 0, under its name. A client chooses its name, so with
    security its connection is name and key.

    Args:
        key: the client's public key, "" without security.
    """
    if session.incarnation:
        return f"{session.node}/{session.incarnation}"
    return f"{session.node} (key {key})" if key else session.node


def client_handle(connection: str, number: int) -> str:
    """One handle of a client, wherever its client enters: no other handle has this text.

    Args:
        number: the client's own, which it never uses again.
    """
    return f"{number} of {connection}"


_INCARNATION_BITS = 31


def lineage(cluster: int) -> int:
    """What the ids of a cluster and of its survivor after a force-boot have in common; 0: of none.

    Clients go on in their cluster's lineage, and nowhere else: elsewhere a queue's id means another
    queue.
    """
    return cluster >> _INCARNATION_BITS


def next_incarnation(cluster: int, chance: int) -> int:
    """The id of the cluster in which a survivor goes on.

    Args:
        chance: random, of 63 bits.
    """
    low = (1 << _INCARNATION_BITS) - 1
    return cluster & ~low | chance & low


OUTBOX_BIT = 1 << 62
"""Of producer ids that no op gives, which are their owners' for ever: a queue's outbox, a spool."""
SPOOL_BIT = 1 << 61
"""Of those that are spools'. A queue's outbox has its generation there: it never grows so far."""


KEY_BIT = SPOOL_BIT
"""Of those that stand for a unique key: without OUTBOX_BIT. An id that an op gives never grows so
far."""


def key_producer(digest: int) -> int:
    """The producer id that stands for a unique key.

    Args:
        digest: of the key; its low 61 bits count.
    """
    return KEY_BIT | digest & KEY_BIT - 1


def is_key(producer: int) -> bool:
    """Whether a producer id stands for a unique key."""
    return producer & (OUTBOX_BIT | KEY_BIT) == KEY_BIT


def spool_producer(number: int) -> int:
    """The producer id of one queue's line through a spool.

    Args:
        number: random, of 61 bits.
    """
    return OUTBOX_BIT | SPOOL_BIT | number & SPOOL_BIT - 1


def is_spool(producer: int) -> bool:
    """Whether a producer id is a spool's."""
    return producer & (OUTBOX_BIT | SPOOL_BIT) == OUTBOX_BIT | SPOOL_BIT
