"""Connections of Spark's processes to a cluster, and where its queues' copies are.

Each process has a connection of its own, made when it is first used: Spark forks its workers,
and ends them without a word. A worker is a client; it never becomes a node.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.reading import Reader
from mirrorq.client.client import Client
from mirrorq.config import Config
from mirrorq.errors import (
    AuthenticationError,
    ConfigError,
    MirrorQError,
    NoQuorum,
    ProtocolError,
    QueueDown,
    QueueNotFound,
    ShutDown,
)
from pyspark_mirrorq.options import Options

__all__ = [
    "AGAIN_S",
    "NOT_HERE",
    "PASSING",
    "at_a_copy",
    "client_of",
    "connected",
    "handle_on",
    "label",
    "master_first",
    "patiently",
    "queue_names",
    "reading_order",
]

PATIENCE_MS = 5000
"""Silence of a node after which a driver or worker goes on to the next one. A process that is
gone shows at once; this is for machines so busy that everything takes its time."""
EXPIRY_MS = 10_000
"""Silence of a driver after which nodes return what it held. One that is gone and cannot say so
keeps its lease or claim for so long."""

PASSING = (NoQuorum, QueueDown)
"""Trouble that ends by itself."""
NOT_HERE = (QueueDown, NoQuorum, ShutDown, ProtocolError)
"""Errors after which another copy may do better."""
AGAIN_S = 0.2
"""What a failover interrupts is tried again after this."""
Value = TypeVar("Value")

_clients: dict[tuple[int, tuple[str, ...]], Client] = {}
_lock = threading.Lock()


def connected(options: Options, endpoints: Sequence[str] | None = None) -> Client:
    """Connect, or say what is wrong in the words of the options.

    Raises:
        NoQuorum: nobody answered.
        ConfigError: an endpoint is malformed, or not on loopback.
    """
    try:
        return mirrorq.connect(
            tuple(endpoints or options.endpoints),
            config=Config(failure_ms=PATIENCE_MS, session_expiry_ms=EXPIRY_MS),
            insecure=options.insecure,
            security=_security(options),
            timeout=options.timeout_s,
        )
    except NoQuorum as error:
        raise NoQuorum(f"option endpoints: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"option endpoints: {error}") from None


def _security(options: Options) -> mirrorq.Security | None:
    """The keys, read where this process runs: options are visible in plans, files are not."""
    if not options.keys:
        return None
    try:
        return mirrorq.Security.load(options.keys)
    except ConfigError as error:
        raise ConfigError(f"option keys: {error}") from None


def client_of(options: Options, endpoints: Sequence[str]) -> Client:
    """This process's client that tries these endpoints in this order."""
    key = (os.getpid(), tuple(endpoints))
    with _lock:
        known = _clients.get(key)
        if known is None or known.is_closed:
            known = _clients[key] = connected(options, endpoints)
        return known


def label(what: str) -> str:
    """How this process names itself to others that want the queue."""
    return f"{what} (Spark driver, process {os.getpid()} on {socket.gethostname()})"


def queue_names(options: Options, client: Client) -> tuple[str, ...]:
    """The queues that the options name; those that a pattern matches now, by name.

    Raises:
        ConfigError: neither a queue nor a pattern is named.
        QueueNotFound: none matches.
    """
    if options.queues:
        return options.queues
    if not options.queue_pattern:
        raise ConfigError(
            "option queue is missing: name a queue, several joined by commas, or give queuePattern"
        )
    found = tuple(status.name for status in client.queues() if is_matched(options, status.name))
    if not found:
        raise QueueNotFound(
            f"option queuePattern: no queue's name matches {options.queue_pattern!r} as a whole"
        )
    return found


def is_matched(options: Options, name: str) -> bool:
    """Whether queuePattern matches the name of a queue."""
    pattern = options.queue_pattern
    return bool(pattern) and re.fullmatch(pattern, name) is not None


def handle_on(client: Client, name: str, timeout_s: float) -> MirroredQueue:
    """A handle on a queue that exists.

    Raises:
        QueueNotFound: it does not.
    """
    try:
        return client.queue(name, passive=True, timeout=timeout_s)
    except QueueNotFound:
        raise QueueNotFound(
            f"option queue: no queue is named {name!r} in the cluster at "
            f"{', '.join(client.endpoints)}: declare it first, or correct the name"
        ) from None


def patiently(options: Options, function: Callable[[], Value]) -> Value:
    """Call a function until no failover interrupts it, for the option timeout at most."""
    deadline = time.monotonic() + options.timeout_s
    while True:
        try:
            return function()
        except PASSING:
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def at_a_copy(
    options: Options, client: Client, queue: MirroredQueue, look: Callable[[Reader], Value]
) -> Value:
    """Look into a copy of a queue: at the node at hand, or else where there is one in sync.

    Raises:
        QueueDown, NoQuorum: no copy could be read now.
    """
    try:
        return look(bulk.reader(queue))
    except QueueDown as error:
        trouble: MirrorQError = error
    for order in reading_order(options, client, queue):
        try:
            there = client_of(options, order)
            return look(bulk.open_reader(there, queue.name, timeout=options.timeout_s))
        except NOT_HERE as error:
            trouble = error
    raise trouble


def reading_order(options: Options, client: Client, queue: MirroredQueue) -> list[list[str]]:
    """For each copy that readers go to: all endpoints in the order in which to try them.

    The master is spared: it is tried last, and is the only one where there are no mirrors.
    """
    status = queue.status()
    nodes = _endpoints(client)
    mirrors = [nodes[name] for name in status.synchronised_mirrors if nodes.get(name)]
    master = [nodes[status.master]] if status.master and nodes.get(status.master) else []
    readers = mirrors or master or list(options.endpoints)
    last = [*master, *options.endpoints]
    return [
        list(dict.fromkeys([*readers[turn:], *readers[:turn], *last]))
        for turn in range(len(readers))
    ]


def _endpoints(client: Client) -> dict[str, str]:
    """Where the nodes are that live; {} when this client's key may not know."""
    try:
        return {node.name: node.endpoint for node in client.nodes() if node.alive}
    except AuthenticationError:
        return {}


def master_first(options: Options, client: Client, queue: str) -> list[str]:
    """Endpoints for who holds messages of a queue: its connection ends with the master or not at
    all, as a rule. The others are tried after it."""
    status = next((one for one in client.queues() if one.name == queue), None)
    nodes = _endpoints(client)
    first = nodes.get(status.master, "") if status is not None and status.master else ""
    return list(dict.fromkeys([*([first] if first else []), *options.endpoints]))
