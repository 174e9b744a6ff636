"""A store that nobody has open is given another identity, and another part in the catalog.

Both in one transaction. What the store holds of queues stays as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from mirrorq.config import Config
from mirrorq.protocol.effects import RaftImage, RaftWrite
from mirrorq.protocol.identities import first_incarnation
from mirrorq.store.environment import Environment, Tables, Transaction
from mirrorq.store.log_mark import check_format, take_in
from mirrorq.store.node_store import INCARNATION, STORE_ID
from mirrorq.store.offline import OfflineStore
from mirrorq.store.queue_log import QueueLog
from mirrorq.store.raft_log import RaftLog
from mirrorq.store.records import Damaged, decoded, pack_u64, seal, unpack_u64

Renewal = Callable[["Inventory", int], RaftWrite]
"""Given what there is and the new identity: what is to stand in place of all that the store holds
of the catalog."""


@frozen
class Inventory:
    """What a store holds and whose it is, read from a store that nobody has open."""

    node: str
    store: int
    raft: RaftImage
    queues: tuple[int, ...]
    """Ids of the queues of which it has a copy."""


def taken_of(store: OfflineStore) -> Inventory:
    """Take the inventory of a store that is only looked at.

    Raises:
        StoreCorrupt: It is damaged.
    """
    return store.read(lambda txn: _inventory(txn, store.tables, store.path))


def renew(path: Path, renewal: Renewal) -> int:
    """Give a store a new identity, and what `renewal` says in place of its catalog.

    Returns:
        The new identity.

    Raises:
        StoreLocked: A process has it open.
        StoreCorrupt: It is damaged; nothing was changed.
        StoreError: It cannot be written; nothing was changed.
    """
    environment = Environment(path, Config().store_bytes_max)
    try:
        identity = secrets.randbelow((1 << 63) - 1) + 1
        environment.open()
        environment.write(lambda txn: _renew(environment, txn, renewal, identity))
        return identity
    finally:
        environment.close()


def _renew(
    environment: Environment,
    txn: Transaction,
    renewal: Renewal,
    identity: int,
) -> None:
    tables = environment.tables
    take_in(txn, tables, environment.path)
    write = renewal(_inventory(txn, tables, environment.path), identity)
    txn.drop(tables.raft, delete=False)
    RaftLog(txn, tables.raft).apply(write)
    for key, number in ((STORE_ID, identity), (INCARNATION, first_incarnation(identity))):
        txn.put(key, seal(key, pack_u64(number)), db=tables.meta)


def _inventory(txn: Transaction, tables: Tables, path: Path) -> Inventory:
    def get(key: bytes) -> bytes:
        value = txn.get(key, db=tables.meta)
        if value is None:
            raise Damaged("meta", key, "it is missing")
        return decoded("meta", key, value, bytes)

    check_format(txn, tables, path)
    queues = QueueLog(txn, tables).queue_ids()
    raft = RaftLog(txn, tables.raft).image()
    return Inventory(get(b"node").decode(), unpack_u64(get(STORE_ID)), raft, tuple(queues))
