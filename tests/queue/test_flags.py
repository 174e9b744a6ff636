"""Each flag of each public call takes a bool: the text "no" is refused, and so is 2."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mirrorq
from mirrorq import aio
from mirrorq.aio.stdlib_queue import QueueAdapter as AioAdapter
from mirrorq.spool.forwarder import Forwarder

pytestmark = [pytest.mark.real, pytest.mark.slow]

NEEDED: dict[str, Any] = {
    "bodies": [b"x"],
    "body": b"x",
    "callback": print,
    "endpoints": "tcp://127.0.0.1:1",
    "item": b"x",
    "name": "other",
    "path": "nowhere",
    "queue": "orders",
    "routing_key": "k",
}
"""What calls must be given beside their flags."""
KINDS = (
    *(mirrorq.MirroredQueue, mirrorq.Message, mirrorq.Exchange, mirrorq.Node, mirrorq.Transaction),
    *(mirrorq.QueueAdapter, mirrorq.SpooledQueue, mirrorq.SpoolClient, Forwarder),
    *(aio.MirroredQueue, aio.Exchange, aio.Node, aio.Client, AioAdapter),
)
"""Classes of which the test has an object."""
MAKERS: tuple[Callable[..., Any], ...] = (
    *(mirrorq.Node, mirrorq.MirroredQueue, mirrorq.Node.spawn, mirrorq.connect),
    *(aio.Node.open, aio.MirroredQueue.open, aio.connect),
)


def flags_of(call: Callable[..., Any]) -> list[str]:
    """The parameters of a call that are bools and nothing else."""
    parameters = inspect.signature(call).parameters.values()
    return [one.name for one in parameters if one.annotation in ("bool", bool)]


def cases() -> Iterator[Any]:
    for kind in KINDS:
        for name, call in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                for flag in flags_of(call):
                    yield pytest.param(kind, name, flag, id=f"{kind.__module__}.{name}-{flag}")
    for call in MAKERS:
        for flag in flags_of(call):
            yield pytest.param(None, call, flag, id=f"{call.__qualname__}-{flag}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some calls open a node before they look at what is a queue's."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[type, Callable[[], Any]]]:
    """An object of each class, made where it is used: some need a running loop."""
    folder: Path = tmp_path_factory.mktemp("flags")
    with ExitStack() as opened:
        node = opened.enter_context(mirrorq.Node("a", path=folder / "a"))
        queue = opened.enter_context(node.queue("orders"))
        exchange = opened.enter_context(node.exchange("news", "topic"))
        spool = opened.enter_context(mirrorq.connect("tcp://127.0.0.1:1", spool=folder / "spool"))
        queue.put(b"x").result(30)
        message = queue.get(timeout=30)
        spooled = spool.queue("orders")
        yield {
            mirrorq.MirroredQueue: lambda: queue,
            mirrorq.Message: lambda: message,
            mirrorq.Exchange: lambda: exchange,
            mirrorq.Node: lambda: node,
            mirrorq.Transaction: lambda: queue.transaction().__enter__(),
            mirrorq.QueueAdapter: queue.as_queue,
            mirrorq.SpooledQueue: lambda: spooled,
            mirrorq.SpoolClient: lambda: spool,
            Forwarder: lambda: Forwarder(queue, node.queue("there")),
            aio.MirroredQueue: lambda: aio.MirroredQueue(queue),
            aio.Exchange: lambda: aio.Exchange(exchange),
            aio.Node: lambda: aio.Node(node),
            aio.Client: lambda: aio.Client(node),
            AioAdapter: lambda: aio.MirroredQueue(queue).as_queue(),
        }


@pytest.mark.parametrize("value", ["no", 2])
@pytest.mark.parametrize(("kind", "call", "flag"), list(cases()))
def test_a_flag_is_a_bool(
    objects: dict[type, Callable[[], Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type | None,
    call: Any,
    flag: str,
    value: object,
) -> None:
    """A TypeError names the flag, and nothing happens."""

    async def calling() -> None:
        made = call if kind is None else getattr(objects[kind](), call)
        parameters = inspect.signature(made).parameters.values()
        given = {
            one.name: NEEDED[one.name]
            for one in parameters
            if one.default is one.empty and one.name in NEEDED
        }
        if "message" in inspect.signature(made).parameters:
            given["message"] = objects[mirrorq.Message]()
        result = made(**given, **{flag: value})
        if inspect.isawaitable(result):
            await result

    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=f"{flag} is {value!r}: it must be True or False"):
        asyncio.run(calling())
    assert objects[mirrorq.Node]().queue("orders").status().messages == 1
    assert list(tmp_path.iterdir()) == []
