"""mirrorq: a replicated, durable, acked work queue that lives inside Python services.

A process that opens a queue is a *node*. Each node keeps a copy of each queue, and there is no
broker beside them::

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
    # any process of this machine: the first one starts its node, which outlives it
    client = mirrorq.local("./shared")
    # a process that is no node
    client = mirrorq.connect("tcp://127.0.0.1:7400,tcp://127.0.0.1:7401")

What it promises:

    P1  A confirmed message is on disk on every member in sync, and is not lost while one of
        them can come back.
    P2  Messages are delivered in one total order per queue; what is returned goes back to
        its place.
    P3  At least once. Of all deliveries of a message at most one says `redelivered=False`,
        and it is the first. An ack whose settlement has resolved is never undone.
    P4  A producer that resends after a failover creates no duplicate. Puts with one `unique`
        key store one message within its window.
    P5  Two masters never confirm different histories.
    P6  Nothing stops the world: not a joining mirror, nor a synchronisation, nor a slow one.

Where what is: `api` queues, messages, confirmations; `node` this process's part in a cluster;
`client` a process that is no node; `aio` all of it for asyncio; `config` limits and times;
`errors` exceptions; `monitoring` what `status()` tells; `testing` a whole cluster under virtual
time; `bulk` reads, holds and writes whole stretches. The other rooms are its inside;
docs/architecture.md shows them.

Importing mirrorq imports none of this but the exceptions: a name is loaded when it is first
used, so a client never loads LMDB.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING

# pip refuses an older Python; a directory in PYTHONPATH does not.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        "mirrorq needs Python 3.11 or later, and this is "
        f"{sys.version_info[0]}.{sys.version_info[1]} ({sys.executable}): run it by another one"
    )

from mirrorq.api.logs import prepare_logger
from mirrorq.api.opening import Embedding, embed_with, open_local_with
from mirrorq.errors import (
    AckRefused,
    AuthenticationError,
    ConfigError,
    ConfirmUnknown,
    Empty,
    Full,
    MessageTooLarge,
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
    from collections.abc import Callable

    from mirrorq.api.confirmation import Confirmation, Settlement, wait
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.exchange import Exchange
    from mirrorq.api.message import Message
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.api.stdlib_queue import QueueAdapter
    from mirrorq.api.transactions import Transaction
    from mirrorq.client.client import Client, connect
    from mirrorq.client.spooled import SpoolClient
    from mirrorq.config import Config
    from mirrorq.monitoring.alarms import Alarm
    from mirrorq.monitoring.presence import ClientStatus, ConsumerStatus
    from mirrorq.monitoring.status import NodeStatus, PolicyStatus, QueueStatus
    from mirrorq.node.local import local
    from mirrorq.node.node import Node
    from mirrorq.node.spawned import SpawnedNode
    from mirrorq.protocol.effects import Notice
    from mirrorq.security.roles import Key
    from mirrorq.security.settings import Security
    from mirrorq.spool.confirmation import SpoolConfirmation
    from mirrorq.spool.forwarder import Forwarder, ForwardStatus
    from mirrorq.spool.queue import SpooledQueue
    from mirrorq.spool.route import SetAside, SpoolStatus

__all__ = [  # noqa: RUF022  (grouped by what they are for)
    # ways to a queue
    "MirroredQueue",
    "Node",
    "connect",
    "local",
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
    "Transaction",
    "QueueAdapter",
    "QueueStatus",
    "NodeStatus",
    "PolicyStatus",
    "ClientStatus",
    "ConsumerStatus",
    "Alarm",
    "Notice",
    "wait",
    # going on without the cluster
    "SpoolClient",
    "SpooledQueue",
    "SpoolConfirmation",
    "SpoolStatus",
    "SetAside",
    # from one cluster to another
    "Forwarder",
    "ForwardStatus",
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
    "MessageTooLarge",
    "PolicyError",
    "AuthenticationError",
    "ProtocolError",
    "StoreError",
    "StoreFull",
    "StoreCorrupt",
    "StoreLocked",
]

prepare_logger(logging.getLogger("mirrorq"))

_HOMES = {
    "Alarm": "mirrorq.monitoring.alarms",
    "ClientStatus": "mirrorq.monitoring.presence",
    "ConsumerStatus": "mirrorq.monitoring.presence",
    "Notice": "mirrorq.protocol.effects",
    "QueueAdapter": "mirrorq.api.stdlib_queue",
    "Transaction": "mirrorq.api.transactions",
    "Client": "mirrorq.client.client",
    "Config": "mirrorq.config",
    "Confirmation": "mirrorq.api.confirmation",
    "Consumer": "mirrorq.api.consumer",
    "Exchange": "mirrorq.api.exchange",
    "ForwardStatus": "mirrorq.spool.forwarder",
    "Forwarder": "mirrorq.spool.forwarder",
    "Message": "mirrorq.api.message",
    "Key": "mirrorq.security.roles",
    "MirroredQueue": "mirrorq.api.queue",
    "Node": "mirrorq.node.node",
    "NodeStatus": "mirrorq.monitoring.status",
    "PolicyStatus": "mirrorq.monitoring.status",
    "QueueStatus": "mirrorq.monitoring.status",
    "Security": "mirrorq.security.settings",
    "SetAside": "mirrorq.spool.route",
    "Settlement": "mirrorq.api.confirmation",
    "SpawnedNode": "mirrorq.node.spawned",
    "SpoolClient": "mirrorq.client.spooled",
    "SpoolConfirmation": "mirrorq.spool.confirmation",
    "SpoolStatus": "mirrorq.spool.route",
    "SpooledQueue": "mirrorq.spool.queue",
    "connect": "mirrorq.client.client",
    "local": "mirrorq.node.local",
    "wait": "mirrorq.api.confirmation",
}


def _embedding() -> Embedding:
    """Return the functions by which `MirroredQueue(path=…)` gets its node."""
    from mirrorq.node.embedded import NODES, acquire

    return acquire, NODES.end_use


def _local() -> Callable[..., Client]:
    """Return the function by which `connect("mirrorq:///folder")` gets its node."""
    from mirrorq.node.local import local

    return local


embed_with(_embedding)
open_local_with(_local)


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("mirrorq")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mirrorq' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
