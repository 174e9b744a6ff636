"""Calls of users with an odd argument: each is taken, or refused in words at the call."""

from __future__ import annotations

import inspect
import math
import queue as stdlib
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import mirrorq
from mirrorq import bulk
from mirrorq.testing import SimulatedCluster

from .readers import Target

CALLS = 60
"""In one run."""
WAIT_S = 0.3
CALL_S = 20.0
"""Virtual seconds after which a call is taken for a hang."""


class Text(str):
    """Of a subclass, as numpy's."""


class Number(int):
    """The same."""


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, math.nan, math.inf, -math.inf, 10**30, -(10**30)),
    *(2**63 - 1, 2**63, 2**64, Number(3), Decimal("1.5"), Fraction(1, 2), 1j),
    *("", "q", "é", "x" * 300, "x" * 70_000, "q#1", "\0", "\ud800", "nan", "1s", "-1s", Text("q")),
    *(b"", b"x", b"\xff", bytearray(b"ab"), memoryview(b"abc")),
    *([], [1], ["q"], [b"a", b"b"], [None], (1, 2), {1}, range(3), ..., object(), print),
    *({}, {"a": 1}, {"a": b"x"}, {1: 2}, {"a": {"b": [1, {"c": None}]}}, {"": ""}, {"a": object()}),
    *(timedelta(seconds=1), timedelta(days=-1), timedelta.max, datetime.now(UTC), Path("x")),
)
GOOD: dict[str, tuple[Any, ...]] = {
    "arguments": (None,),
    "block": (True, False),
    "bodies": ([b"a", b"b"], []),
    "body": (b"x",),
    "callback": (print,),
    "count_max": (1, 5),
    "definition": ({"max-length": 100}, {"message-ttl": "5s"}),
    "kind": ("fanout", "topic"),
    "name": ("q", "s", "t"),
    "node": ("a",),
    "pattern": ("^q", "^none$"),
    "queue": ("q", "s"),
    "timeout": (WAIT_S, 0),
}
ANSWERS = (mirrorq.MirrorQError, stdlib.Empty, stdlib.Full, TimeoutError)
ENDS = {"add_listener", "as_queue", "close", "forget_node", "shutdown", "spawn", "wait_ready"}
"""Not called: they end what others need, or have tests of their own."""


def run_calls(chance: Random) -> None:
    """One cluster, with a node's and a client's handles."""
    with SimulatedCluster(1, seed=chance.randrange(1 << 30)) as cluster:
        cluster.run(3)
        node, client = cluster.node("a"), cluster.connect("web")
        task = cluster.spawn(
            lambda: [_call_one(cluster, node, client, chance) for _ in range(CALLS)]
        )
        task.result(CALLS * CALL_S)
        assert not node.is_closed
        assert not client.is_closed
        node.queue("alive").put(b"x").result(60)


def _call_one(
    cluster: SimulatedCluster, node: mirrorq.Node, client: mirrorq.Client, chance: Random
) -> None:
    try:
        call = chance.choice(list(_calls(chance.choice((node, client)), chance)))
    except ANSWERS:
        return
    arguments = _arguments(call, chance)
    began = cluster.now
    try:
        _end(call(*arguments.args, **arguments.kwargs))
    except ANSWERS:
        pass
    except (TypeError, ValueError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert "raise" in (last.line or ""), f"not refused in words: {call.__qualname__}{arguments}"
    assert cluster.now - began <= CALL_S, f"hangs: {call.__qualname__}{arguments}"


def _calls(host: mirrorq.Node | mirrorq.Client, chance: Random) -> Iterator[Callable[..., Any]]:
    """Public calls of the host, of handles on it, of a message, and of `mirrorq.bulk`."""
    owner: Any = host
    match chance.randrange(6):
        case 1:
            owner = host.queue("q")
        case 2:
            owner = host.queue("s", shards=2)
        case 3:
            owner = host.exchange("news", "topic")
        case 4:
            queue = host.queue("q")
            queue.put(b"x")
            owner = queue.get(timeout=10)
        case 5:
            yield from (bulk.claim, bulk.extent, bulk.lease, bulk.staged)
            return
    for name in dir(owner):
        if not name.startswith("_") and name not in ENDS and callable(call := getattr(owner, name)):
            yield call


def _arguments(call: Callable[..., Any], chance: Random) -> inspect.BoundArguments:
    """Good arguments, but for one."""
    signature = inspect.signature(call)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_POSITIONAL]
    odd = chance.choice(named).name if named else ""
    bound = signature.bind_partial()
    for one in named:
        if one.name == odd:
            # A call may wait for as long as it is told to.
            fitting = [value for value in ODD if odd != "timeout" or not _is_long(value)]
            bound.arguments[odd] = chance.choice(fitting)
        elif one.default is one.empty or one.name == "timeout":
            bound.arguments[one.name] = chance.choice(GOOD.get(one.name, ODD))
    return bound


def _is_long(timeout: object) -> bool:
    return timeout is None or (isinstance(timeout, int | float) and timeout > WAIT_S)


def _end(made: Any) -> None:
    """End what a call has made, so that it holds nothing from the next."""
    for name in ("cancel", "give_back", "close"):
        if hasattr(made, name):
            getattr(made, name)()
            return
    if hasattr(made, "result"):
        made.result(WAIT_S)


CALLS_OF_USERS = Target("calls", run_calls, inputs=CALLS)
