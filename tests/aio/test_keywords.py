"""Keywords are written once: asyncio's calls take what threads' do, and type checkers know them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirrorq
from mirrorq import aio
from mirrorq.api import exchange, transactions
from mirrorq.api.options import DEFAULTS, EmbeddedOptions, MessageOptions, NodeOptions, packed

ROOT = Path(__file__).parents[2]

PAIRS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (mirrorq.MirroredQueue, aio.MirroredQueue.open),
    (mirrorq.Node, aio.Node.open),
    (mirrorq.connect, aio.connect),
    (mirrorq.Client.queue, aio.Client.queue),
    (mirrorq.Node.queue, aio.Node.queue),
    (mirrorq.Client.exchange, aio.Client.exchange),
    *(
        (getattr(host, name), getattr(aio.Node, name))
        for name in (
            "wait_ready",
            "queues",
            "nodes",
            "policies",
            "set_policy",
            "clear_policy",
            "sync_queue",
            "cancel_sync",
            "transfer_master",
            "rebalance",
            "clients",
            "consumers",
            "disconnect",
            "forget_node",
        )
        for host in (mirrorq.Node, mirrorq.Client)
    ),
    *(
        (getattr(mirrorq.MirroredQueue, name), getattr(aio.MirroredQueue, name))
        for name in (
            "put",
            "put_many",
            "put_nowait",
            "wait_for_confirms",
            "add_confirm_listener",
            "add_ack_listener",
            "get",
            "get_nowait",
            "get_many",
            "ack_many",
            "consume",
            "qsize",
            "empty",
            "full",
            "status",
            "browse",
            "purge",
            "redrive",
            "transaction",
            "delete",
            "shard",
            "shutdown",
            "close",
        )
    ),
    *(
        (getattr(exchange.Exchange, name), getattr(aio.Exchange, name))
        for name in ("publish", "bind", "unbind", "bindings", "delete", "wait_for_confirms")
    ),
    (transactions.Transaction.put, aio.Transaction.put),
    *(
        (getattr(mirrorq.SpooledQueue, name), getattr(aio.SpooledQueue, name))
        for name in (
            *("put", "put_many", "put_nowait", "status", "flush", "wait_for_confirms"),
            *("set_aside", "drop_set_aside", "replicated", "get", "close"),
        )
    ),
    *(
        (getattr(mirrorq.SpoolClient, name), getattr(aio.SpoolClient, name))
        for name in ("queue", "client", "spooled", "close")
    ),
]


def taken(call: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """What a call takes, but for its object: names, how they are given, and defaults."""
    parameters = inspect.signature(call).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]


@pytest.mark.parametrize(("threads", "loops"), PAIRS, ids=lambda call: call.__qualname__)
def test_asyncio_takes_what_threads_do(
    threads: Callable[..., Any], loops: Callable[..., Any]
) -> None:
    """Each argument, in the same way, with the same default; none is hidden behind others."""
    assert taken(loops) == taken(threads)
    assert inspect.Parameter.VAR_KEYWORD not in {kind for _, kind, _ in taken(threads)}


def test_what_is_shown_as_a_default_is_one() -> None:
    """Options that are not given are shown with what the calls that read them make of that."""
    for call, options in ((packed, MessageOptions), (mirrorq.Node, NodeOptions)):
        shown = {name: default for name, _, default in taken(call)}
        assert {name: shown[name] for name in inspect.get_annotations(options)} == {
            name: DEFAULTS.get(name) for name in inspect.get_annotations(options)
        }
    declared = {name: default for name, _, default in taken(mirrorq.Client._declare)}
    embedded = {name: default for name, _, default in taken(mirrorq.MirroredQueue)}
    assert set(EmbeddedOptions.__annotations__) <= set(embedded)
    assert {name: embedded[name] for name in declared} == declared


WRONG = {
    'queue.put(b"x", prioriti=3)': '"put" of "MirroredQueue"; did you mean "priority"',
    'queue.put(b"x", ttl=b"soon")': '"ttl" to "put" of "MirroredQueue" has incompatible type',
    "queue.put_many([], keys=1)": '"put_many" of "MirroredQueue"; did you mean "key"',
    'message.ack_and_put("q", b"x", dela=1)': '"ack_and_put" of "Message"; did you mean "delay"',
    'exchange.publish("k", b"x", key="k")': 'Unexpected keyword argument "key" for "publish"',
    'client.queue("q", shards="3")': '"shards" to "queue" of "Access" has incompatible type',
    'MirroredQueue("q", path=".", durabel=True)': 'did you mean "durable"',
    'await aqueue.put(b"x", headers=3)': '"headers" to "put" of "MirroredQueue" has incompatible',
    'await aclient.queue("q", exclusiv=True)': 'did you mean "exclusive"',
    'await aexchange.publish("k", b"x", manditory=1)': 'did you mean "mandatory"',
    'await aio.Node.open("a", path=".", witnes=True)': 'did you mean "witness"',
    'await aclient.set_policy("p", "", {}, prioriti=1)': 'did you mean "priority"',
    'await aio.connect("tcp://h:1", timeut=3)': 'No overload variant of "connect" matches',
}
"""What a user may write wrongly, and a part of what mypy says to it."""

RIGHT = """
confirmation = queue.put(b"x", True, 5, headers={"a": 1}, key="k", priority=3, delay=0.5)
sequence: int = await aqueue.put(b"x", message_id="m", timeout=5)
outcome = (await aqueue.send(b"x", message_id="m", timeout=5)).result(0)
await aqueue.ack_and_put(message, "q", b"x", key="k", ttl=3)
"""

PROGRAM = """
from mirrorq import Client, Exchange, Message, MirroredQueue, aio

async def main(
    queue: MirroredQueue, message: Message, exchange: Exchange, client: Client,
    aqueue: aio.MirroredQueue, aexchange: aio.Exchange, aclient: aio.Client,
) -> None:
"""


@pytest.mark.real
@pytest.mark.slow
def test_a_type_checker_finds_what_is_misspelled(tmp_path: Path) -> None:
    """Every line that is wrong, by name or by type, and no line that is right."""
    lines = [*RIGHT.strip().splitlines(), *WRONG]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.lstrip() + "".join(f"    {line}\n" for line in lines))
    first = len(PROGRAM.lstrip().splitlines()) + 1
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said: dict[str, str] = {}
    for line in ran.stdout.splitlines():
        _, separator, rest = line.partition("program.py:")
        number, _, text = rest.partition(": error: ")
        if separator and text:
            said[lines[int(number) - first]] = text
    assert set(said) == set(WRONG), ran.stdout + ran.stderr
    for line, expected in WRONG.items():
        assert expected in said[line], line


@pytest.mark.parametrize(
    "call", [mirrorq.connect, lambda **options: mirrorq.Node("a", path="unused", **options)]
)
def test_a_keyword_that_is_none_is_refused(call: Callable[..., Any]) -> None:
    """What takes its keywords as one mapping knows each of them all the same."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeuot'"):
        call(timeuot=3)
    assert not Path("unused").exists()
