"""A closed store is given another identity, and another part in the catalog.

Both in one transaction. The queues' content in the store stays unchanged.
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
"""Takes the inventory and the new identity, returns the write to replace the store's whole Raft
state."""


@frozen
class Inventory:
    """Content and owner of a store which no process has open."""

    node: str
    store: int
    raft: RaftImage
    queues: tuple[int, ...]
    """Ids of the queues with a copy in the store."""


def taken_of(store: OfflineStore) -> Inventory:
    """Take the inventory of a store under read-only access.

    Raises:
        StoreCorrupt: The store is damaged.
    """
    return store.read(lambda txn: _inventory(txn, store.tables, store.path))


def renew(path: Path, renewal: Renewal) -> int:
    """Give a store a new identity, and replace its catalog by the write of `renewal`.

    Returns:
        The new identity.

    Raises:
        StoreLocked: A process has the store open.
        StoreCorrupt: The store is damaged; nothing was changed.
        StoreError: The store cannot be written; nothing was changed.
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
