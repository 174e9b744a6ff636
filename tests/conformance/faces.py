"""The faces of a queue handle: one interface in five implementations, on virtual time.

A test calls a handle as it calls `mirrorq.MirroredQueue`: `put`, `get`, `consume`, and so on. The
handle of a node, that of a client and that of a sharded queue are of this class. `Awaited` turns
the calls of `mirrorq.aio` into blocking ones. `ItemHandle` turns `as_queue()` into `put`, `get` and
`ack`. So a test reads as plain sequential code, for each face alike.

A face names the groups of calls that it has (`Face.calls`), and the refusals that are documented
for the others (`Face.refusals`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from mirrorq import Config, ConfigError, Message, PreconditionFailed, aio, bulk
from mirrorq.protocol.shard_names import shard_of
from mirrorq.testing import SimulatedCluster

WAIT_S = 30.0
"""Virtual. A call that takes longer has failed."""
SHARDS = 3
KEY = next(key for key in map(str, range(100)) if shard_of(key, SHARDS) == 0)
"""The key of all messages of the sharded face: the first shard has them, in their order."""

Calls = frozenset[str]
ITEMS: Calls = frozenset({"items"})
"""put, get, qsize, empty, full, shutdown and ack."""
MESSAGES: Calls = ITEMS | {"messages"}
"""All calls of a handle on a queue or on its shards."""
BLOCKING: Calls = MESSAGES | {"blocking"}
"""The same, and `as_queue()` is a `queue.Queue`."""
ONE_RING: Calls = MESSAGES | {"one ring"}
"""The calls that only a queue without shards has: exclusive, auto_delete and sequences."""
AWAITED: Calls = frozenset({"awaited"})
"""The calls of asyncio that wait for their outcomes: `Awaited.awaiting`."""
THREADS: Calls = BLOCKING | ONE_RING | {"reading"}
"""The calls for threads only: read, lease, claim, extent."""
Test = TypeVar("Test", bound=Callable[..., None])


@frozen
class Case:
    """What a test needs: groups of calls, and a cluster."""

    calls: Calls = MESSAGES
    nodes: int = 1
    config: Config | None = None


def case(calls: Calls = MESSAGES, *, nodes: int = 1, **settings: int) -> Callable[[Test], Test]:
    """Have a test run on the faces with these calls, on such a cluster.

    Args:
        calls: groups that the test uses.
        nodes: of the cluster.
        settings: of `mirrorq.Config`.
    """

    def mark(test: Test) -> Test:
        test.case = Case(calls, nodes, Config(**settings))  # type: ignore[attr-defined]
        return test

    return mark


class Face:
    """One way to hold a queue: opens handles and exchanges in the process of one host."""

    name: ClassVar[str]
    calls: ClassVar[Calls] = THREADS
    refusals: ClassVar[dict[str, tuple[type[Exception], str, Callable[[Any], object]]]] = {}
    """What the documentation says that this face refuses: the error, its text, and the call."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.loop_thread = 0
        """The thread of the loop in which listeners are called; 0: another thread of mirrorq."""
        self.host: Any = self.open_host()

    def open_host(self) -> Any:
        """Return the node or client of the handles: the last node of the cluster."""
        return self.cluster.node(self.cluster.running[-1])

    def queue(self, name: str, **options: Any) -> Any:
        return self.host.queue(name, **options)

    def exchange(self, name: str, kind: str | None = None, **options: Any) -> Any:
        return self.host.exchange(name, kind, **options)

    def close(self) -> None:
        """End what the face itself has opened."""


class NodeFace(Face):
    name = "node"


class ClientFace(Face):
    name = "client"

    def open_host(self) -> Any:
        return self.cluster.connect("web", to=reversed(self.cluster.running))


class ShardedFace(Face):
    """A queue of three shards. All messages have one key, unless a test gives another one."""

    name = "sharded"
    calls = BLOCKING
    refusals: ClassVar = {
        "lease": (PreconditionFailed, "call it on a shard", lambda queue: bulk.lease(queue.handle)),
        "claim": (PreconditionFailed, "call it on a shard", lambda queue: bulk.claim(queue.handle)),
        "extent": (
            PreconditionFailed,
            "call it on a shard",
            lambda queue: bulk.extent(queue.handle),
        ),
        "read": (
            PreconditionFailed,
            "call it on a shard",
            lambda queue: bulk.reader(queue.handle).read(1, 2),
        ),
        "exclusive": (
            ConfigError,
            "cannot have shards",
            lambda queue: queue.node.queue("other", shards=SHARDS, exclusive=True),
        ),
        "auto_delete": (
            ConfigError,
            "cannot have shards",
            lambda queue: queue.node.queue("other", shards=SHARDS, auto_delete=True),
        ),
    }

    def queue(self, name: str, **options: Any) -> Any:
        return Keyed(self.host.queue(name, **({"shards": SHARDS} | options)))


class Keyed:
    """A handle whose puts have a key."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def put(self, *values: Any, **options: Any) -> Any:
        return self.handle.put(*values, **({"key": KEY} | options))

    def put_many(self, *values: Any, **options: Any) -> Any:
        return self.handle.put_many(*values, **({"key": KEY} | options))

    def put_nowait(self, body: bytes) -> Any:
        return self.handle.put(body, block=False, key=KEY)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def __iter__(self) -> Any:
        return iter(self.handle)

    def __enter__(self) -> Keyed:
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.close()


class Loop:
    """An event loop in a task of its own, in which other tasks have calls made."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._is_up = threading.Event()
        self._task = cluster.spawn(lambda: asyncio.run(self._serve()), name="loop")
        self._is_up.wait()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.thread = threading.get_ident()
        self._is_up.set()
        await self._end.wait()

    def call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Call a function in the loop, await what it returns, and return that."""

        async def calling() -> Any:
            result = function(*values, **named)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._task.result(WAIT_S)


SENDING = {"put": "send", "put_many": "send_many", "publish": "send"}
"""Calls of threads that return a confirmation, and their names in asyncio."""


class Awaited:
    """An object of `mirrorq.aio` whose calls block until the loop has ended them."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop, self._target = loop, target

    def __getattr__(self, name: str) -> Any:
        is_transaction = isinstance(self._target, aio.Transaction)
        found = getattr(self._target, name if is_transaction else SENDING.get(name, name))
        if not callable(found):
            return self._wrap(found)
        return lambda *values, **named: self._call(found, *values, **named)

    def awaiting(self, name: str, *values: Any, **named: Any) -> Any:
        """The call of this name, as a program of asyncio makes it: awaited to its outcome."""
        return self._call(getattr(self._target, name), *values, **named)

    def _call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        bare = [each._target if isinstance(each, Awaited) else each for each in values]
        return self._wrap(self._loop.call(function, *bare, **named))

    def _wrap(self, result: Any) -> Any:
        kinds = (aio.MirroredQueue, aio.Exchange, aio.Transaction, aio.Client, aio.Node)
        is_adapter = type(result).__name__ == "QueueAdapter"
        return Awaited(self._loop, result) if isinstance(result, kinds) or is_adapter else result

    def consume(self, callback: Any, **options: Any) -> Any:
        """A callback of the test blocks as in a thread: it runs in one, awaited in the loop."""
        if not callable(callback):
            return self._call(self._target.consume, callback, **options)

        async def work(message: Message) -> None:
            await asyncio.to_thread(callback, message)

        return self._call(self._target.consume, work, **options)

    def __iter__(self) -> Any:
        messages = self._target.__aiter__()
        while (found := self._call(anext, messages, None)) is not None:
            yield found

    def __enter__(self) -> Awaited:
        self._call(self._target.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._target.__aexit__, *error)


class AioFace(Face):
    """Handles of `mirrorq.aio`, on a client."""

    name = "aio"
    calls = ONE_RING | {"awaited"}

    def open_host(self) -> Any:
        self._loop = Loop(self.cluster)
        self.loop_thread = self._loop.thread
        client = self.cluster.connect("web", to=reversed(self.cluster.running))
        return Awaited(self._loop, aio.Client(client))

    def close(self) -> None:
        self._loop.close()


class Item:
    """What a queue of the standard library has given: a body, and `ack` for `task_done`."""

    def __init__(self, adapter: Any, body: bytes) -> None:
        self._adapter, self.body = adapter, body

    def ack(self) -> None:
        self._adapter.task_done()


class ItemHandle:
    """`as_queue(ack="task_done")` with the calls of a handle that it has."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.adapter = handle.as_queue(ack="task_done")
        for name in ("put", "put_nowait", "qsize", "empty", "full", "shutdown"):
            setattr(self, name, getattr(self.adapter, name))

    def get(self, *values: Any, **named: Any) -> Item:
        return Item(self.adapter, self.adapter.get(*values, **named))

    def get_nowait(self) -> Item:
        return Item(self.adapter, self.adapter.get_nowait())

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> ItemHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsQueueFace(Face):
    name = "as_queue"
    calls = ITEMS

    def queue(self, name: str, **options: Any) -> Any:
        return ItemHandle(self.host.queue(name, **options))


FACES: tuple[type[Face], ...] = (NodeFace, ClientFace, ShardedFace, AioFace, AsQueueFace)


class Stage:
    """A cluster with one face on it. The host of the face is not the first node, if there are two.

    Args:
        face: its class.
        given: arguments of `SimulatedCluster`.
    """

    def __init__(self, face: type[Face], **given: Any) -> None:
        self._given, self._face = given, face
        self._alone: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        self.cluster = self._stack.enter_context(SimulatedCluster(**self._given))
        self.face = self._face(self.cluster)
        self.host = self.face.host
        self.exchange = self.face.exchange
        self.run = self.cluster.run
        return self

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is None:
            self.face.close()
        return self._stack.__exit__(*error)

    def queue(self, name: str = "orders", **options: Any) -> Any:
        """Another handle on the queue. The first node declares it, and so is its master."""
        if "shards" not in options and not self._is_declared(name) and self.size > 1:
            passive = {"exclusive", "auto_delete", "passive"} & set(options)
            if not passive:
                self._declare(name, options)
        return self.face.queue(name, **options)

    def _is_declared(self, name: str) -> bool:
        node = self.cluster.node(self.cluster.running[0])
        return name in [row.name for row in node.queues()]

    def _declare(self, name: str, options: dict[str, Any]) -> None:
        shards = {"shards": SHARDS} if self._face is ShardedFace else {}
        self.cluster.queue(name, on="a", **options, **shards).close()
        self.until(lambda: self._is_in_sync(name, 0 if name in self._alone else self.size - 1))

    def _is_in_sync(self, name: str, mirrors: int) -> bool:
        rows = self.cluster.node("a").queues(shards=True)
        copies = [row for row in rows if row.name.partition("#")[0] == name and not row.shards]
        return all(len(row.synchronised_mirrors) == mirrors and row.master for row in copies)

    @property
    def size(self) -> int:
        return len(self.cluster.running)

    def messages(self, name: str = "orders", at: str = "") -> int:
        """Messages that live in the queue, as a node says: the last one, or the one named."""
        rows = self.cluster.node(at or self.cluster.running[-1]).queues()
        return sum(row.messages or 0 for row in rows if row.name == name)

    def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until the condition holds."""
        self.cluster.run_until(lambda: bool(condition()), WAIT_S)

    def is_full(self, queue: Any) -> bool:
        """Whether `full()` says so. A sharded queue has other shards, which are not full."""
        return self._face is ShardedFace or bool(queue.full())

    def begin(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Make a call that blocks in a task of its own; `result` waits for its end."""
        task = self.cluster.spawn(function, *values, **named)
        self.run(0.1)
        return task

    def fail_over(self) -> None:
        """End the process of the master, and wait until handles know that another node serves."""
        self.cluster.crash("a")
        self.until(lambda: not any("a" in (row.master or "a") for row in self.host.queues()))
        self.run(0.5)

    def cut_off(self) -> None:
        """Separate the nodes from each other: no majority anywhere."""
        self.cluster.partition(*[{name} for name in self.cluster.running])

    def alone(self, name: str = "orders", **options: Any) -> Any:
        """A handle on a queue without a mirror: it is down while the first node is."""
        pattern, nodes = f"^{name}(#|$)", {"ha-mode": "nodes", "ha-params": ["a"]}
        self.cluster.node("a").set_policy(f"alone {name}", pattern, nodes)
        self._alone.add(name)
        return self.queue(name, **options)

    def restart(self) -> None:
        """A new term of the master, on what its disk has."""
        self.cluster.crash("a")
        self.cluster.restart("a")

    def is_down(self, name: str = "orders") -> bool:
        """Whether the host of the face knows that the queue has no master."""
        rows = self.host.queues()
        return any(row.name == name and row.state == "down" for row in rows)


def fill(queue: Any, count: int) -> None:
    """Publish bodies 0 to count - 1, confirmed."""
    queue.put_many([b"%d" % number for number in range(count)]).result(WAIT_S)


def got(queue: Any, count: int) -> list[Any]:
    """So many messages, none acked."""
    return [queue.get(timeout=WAIT_S) for _ in range(count)]


def taken(queue: Any, count: int) -> list[bytes]:
    """Bodies of so many messages, acked."""
    messages = got(queue, count)
    for message in messages:
        message.ack()
    return [message.body for message in messages]


def raised(function: Callable[..., Any], *values: Any, **named: Any) -> BaseException | None:
    """What a call raises; None: nothing."""
    try:
        function(*values, **named)
    except Exception as error:
        return error
    return None
