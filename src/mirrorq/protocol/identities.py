"""Identities: stores, their incarnations, handles."""

from __future__ import annotations

from msgspec import Struct


class StoreId(Struct, frozen=True, gc=False, order=True):
    """A store on a node: the voter of the catalog. A wiped store counts as another store."""

    node: str
    store: int
    """Random 63-bit identity, made when the store is created."""


class MemberId(Struct, frozen=True, gc=False, order=True):
    """An incarnation of a store: the member in a view."""

    node: str
    store: int
    incarnation: int
    """Grows at each start of the node, from `first_incarnation` on: `incarnation_after`."""


def first_incarnation(store: int) -> int:
    """Return the number of a store's first incarnation, different for each store.

    A connection names the node and the incarnation. If each store began with 1, messages of an
    empty store's first incarnation would count as messages of a lost store of the same name.
    """
    return (store & 0x3FFF_FFFF) + 1


_CHANCE_BITS = 20
_STEPS_MAX = 1_024
"""So many starts of a rejected copy go on by one each (`incarnation_after`)."""


def incarnation_after(previous: int, chance: int, known: int | None = None) -> int:
    """Return the number of a store's next incarnation.

    The low bits are random. So an earlier copy of the store, put in its place, goes on with another
    number than the store did (`is_set_back`). The numbers of a rejected copy stay apart from the
    store's, over many starts.

    Args:
        chance: random, of 20 bits at least.
        known: the last incarnation registered with a cluster, as far as the store knows.
    """
    if known not in (None, previous):
        return previous + 1
    return (previous >> _CHANCE_BITS) + 1 << _CHANCE_BITS | chance & (1 << _CHANCE_BITS) - 1


def is_set_back(incarnation: int, known: int) -> bool:
    """Return true if an incarnation has begun from an earlier copy of its store.

    Args:
        known: the last incarnation of the same store known to its cluster.
    """
    if incarnation < known:
        return True
    is_beside = incarnation >> _CHANCE_BITS == known >> _CHANCE_BITS
    return is_beside and incarnation - known > _STEPS_MAX


class SessionId(Struct, frozen=True, gc=False, order=True):
    """A handle. It lives on `node` and never moves."""

    node: str
    incarnation: int
    number: int


def connection_of(session: SessionId, key: str = "") -> str:
    """Return the connection of a handle: a client, or an incarnation of a node.

    A client's own sessions have incarnation 0, under its name. A client chooses its name, so with
    security its connection is name and key.

    Args:
        key: the client's public key, "" without security.
    """
    if session.incarnation:
        return f"{session.node}/{session.incarnation}"
    return f"{session.node} (key {key})" if key else session.node


def client_handle(connection: str, number: int) -> str:
    """Return a unique text for a client's handle, equal at every entry node.

    Args:
        number: the client's own, never used twice.
    """
    return f"{number} of {connection}"


_INCARNATION_BITS = 31


def lineage(cluster: int) -> int:
    """Return the common part of the ids of a cluster and its force-boot survivor; 0: none.

    Clients go on in their cluster's lineage only: elsewhere a queue's id means another queue.
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
"""Bit of producer ids not given by an op, and permanent: a queue's outbox, a spool."""
SPOOL_BIT = 1 << 61
"""Bit of spools' ids. An outbox's id has the queue's generation there, which never grows so far."""


KEY_BIT = SPOOL_BIT
"""Bit of ids which stand for a unique key, without OUTBOX_BIT. Ids given by ops never grow so far.
"""


def key_producer(digest: int) -> int:
    """Return the producer id of a unique key.

    Args:
        digest: of the key; its low 61 bits count.
    """
    return KEY_BIT | digest & KEY_BIT - 1


def is_key(producer: int) -> bool:
    """Return true if a producer id stands for a unique key."""
    return producer & (OUTBOX_BIT | KEY_BIT) == KEY_BIT


def spool_producer(number: int) -> int:
    """Return the producer id of one queue's line through a spool.

    Args:
        number: random, of 61 bits.
    """
    return OUTBOX_BIT | SPOOL_BIT | number & SPOOL_BIT - 1


def is_spool(producer: int) -> bool:
    """Return true if a producer id is a spool's."""
    return producer & (OUTBOX_BIT | SPOOL_BIT) == OUTBOX_BIT | SPOOL_BIT
