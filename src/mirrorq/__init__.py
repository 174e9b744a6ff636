"""mirrorq: a replicated, durable, acked work queue that lives inside Python services.

A process that opens a queue is a *node*; the nodes of a LAN keep a copy of each queue each,
and there is no broker beside them::

    import mirrorq

    peers = {"a": "tcp://127.0.0.1:7400", "b": "tcp://127.0.0.1:7401",
             "c": "tcp://127.0.0.1:7402"}
    with mirrorq.Node("a", path="./a", peers=peers) as node:    # and "b", "c" elsewhere
        orders = node.queue("orders")                           # waits for a majority
        sequence = orders.put(b"order 1").result(timeout=10)    # on disk on every mirror
        with orders.get(timeout=10) as message:                 # acks at a clean end
            print(sequence, message.body, message.redelivered)
    # one process, no peers, no sockets: the same queue
    with mirrorq.MirroredQueue("jobs", path="./data") as jobs:
        jobs.put_many([b"one", b"two"]).result()                # range(1, 3)
    # a process that is no node
    client = mirrorq.connect("tcp://127.0.0.1:7400,tcp://127.0.0.1:7401")

What it promises:

    P1  A confirmed message is on disk on every member in sync, and is not lost while one of
        them can come back.
    P2  Messages are delivered in one total order per queue; what is returned goes back to
        its place.
    P3  At least once. Of all hand-outs of a message at most one says `redelivered=False`,
        and it is the first. An ack whose settlement has resolved is never undone.
    P4  A producer that resends after a failover creates no duplicate.
    P5  Two masters never confirm different histories.
    P6  Nothing stops the world: not a joining mirror, nor a synchronisation, nor a slow one.

Where what is: `queue` handles, messages, confirmations; `node` this process's part in a
cluster; `client` a process that is no node; `aio` all of it for asyncio; `config` limits and
times; `errors` exceptions; `status` what `status()` tells; `testing` a whole cluster under
virtual time. The other modules are its inside; docs/architecture.md shows them.

Importing mirrorq imports none of this but the exceptions: a name is loaded when it is first
used, so a client never loads LMDB.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from mirrorq.errors import (
    AckRefused,
    AuthenticationError,
    ConfigError,
    ConfirmUnknown,
    Empty,
    Full,
    MirrorQError,
    NoQuorum,
    NotConfirmed,
    PolicyError,
    PreconditionFailed,
    ProtocolError,
    QueueDown,
    QueueNotFound,
    ShutDown,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
)

if TYPE_CHECKING:
    from mirrorq.client import Client, connect
    from mirrorq.config import Config
    from mirrorq.confirmation import Confirmation, Settlement, wait
    from mirrorq.consumer import Consumer
    from mirrorq.exchange import Exchange
    from mirrorq.message import Message
    from mirrorq.node import Node
    from mirrorq.queue import MirroredQueue
    from mirrorq.reading import Batch, Extent, Reader
    from mirrorq.rights import Key
    from mirrorq.security import Security
    from mirrorq.spawned import SpawnedNode
    from mirrorq.status import NodeStatus, PolicyStatus, QueueStatus
    from mirrorq.takers import Claim, RangeLease

__all__ = [  # noqa: RUF022  (grouped by what they are for)
    # ways to a queue
    "MirroredQueue",
    "Node",
    "connect",
    "Client",
    "SpawnedNode",
    "Exchange",
    "Config",
    "Security",
    "Key",
    # what a queue gives
    "Message",
    "Confirmation",
    "Settlement",
    "Consumer",
    "QueueStatus",
    "NodeStatus",
    "PolicyStatus",
    "wait",
    # reading without taking
    "Batch",
    "Extent",
    "Reader",
    "RangeLease",
    "Claim",
    # exceptions
    "MirrorQError",
    "Empty",
    "Full",
    "ShutDown",
    "NotConfirmed",
    "ConfirmUnknown",
    "AckRefused",
    "NoQuorum",
    "QueueNotFound",
    "QueueDown",
    "PreconditionFailed",
    "ConfigError",
    "PolicyError",
    "AuthenticationError",
    "ProtocolError",
    "StoreError",
    "StoreFull",
    "StoreCorrupt",
    "StoreLocked",
]

# What happens to nodes and clients is told here; an application says where it goes.
logging.getLogger("mirrorq").addHandler(logging.NullHandler())

_HOMES = {
    "Batch": "mirrorq.reading",
    "Extent": "mirrorq.reading",
    "Reader": "mirrorq.reading",
    "RangeLease": "mirrorq.takers",
    "Claim": "mirrorq.takers",
    "Client": "mirrorq.client",
    "Config": "mirrorq.config",
    "Confirmation": "mirrorq.confirmation",
    "Consumer": "mirrorq.consumer",
    "Exchange": "mirrorq.exchange",
    "Message": "mirrorq.message",
    "Key": "mirrorq.rights",
    "MirroredQueue": "mirrorq.queue",
    "Node": "mirrorq.node",
    "NodeStatus": "mirrorq.status",
    "PolicyStatus": "mirrorq.status",
    "QueueStatus": "mirrorq.status",
    "Security": "mirrorq.security",
    "Settlement": "mirrorq.confirmation",
    "SpawnedNode": "mirrorq.spawned",
    "connect": "mirrorq.client",
    "wait": "mirrorq.confirmation",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mirrorq' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
