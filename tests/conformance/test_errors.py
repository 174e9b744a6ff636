"""Mistakes: what is wrong with a call is said at the call, by name and value, with what to do about
it. Nothing else happens: the handle, its host and all other handles go on."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mirrorq
from conformance.faces import (
    FACES,
    ITEMS,
    MESSAGES,
    ONE_RING,
    THREADS,
    WAIT_S,
    Face,
    Stage,
    case,
    fill,
    got,
    taken,
)
from mirrorq import Message, MessageTooLarge, bulk

HUGE = 2**70
HALF = "\ud800"
"""Half of a surrogate pair: a str that cannot be written."""


def mistakes(script: str) -> list[tuple[str, str]]:
    """Of two lines each: a call, and the kind and words of what it raises."""
    lines = script.strip().splitlines()
    return list(zip(lines[::2], map(str.strip, lines[1::2]), strict=True))


async def coroutine_function(message: Message) -> None:
    """Nothing awaits it in a thread."""


def held(queue: Any) -> Message:
    queue.put(b"x").result(WAIT_S)
    message: Message = queue.get(timeout=WAIT_S)
    return message


NAMES = {
    "HALF": HALF,
    "HUGE": HUGE,
    "UTC": UTC,
    "WAIT_S": WAIT_S,
    "coroutine_function": coroutine_function,
    "datetime": datetime,
    "bulk": bulk,
    "held": held,
    "pickle": pickle,
    "timedelta": timedelta,
}
"""What calls may use besides the handle or the host."""

ON_A_QUEUE = r"""
queue.transaction().put(b"x")
    ValueError: the transaction has not begun
queue.put(b"x", 5)
    TypeError: block is 5: it must be
queue.put_many([b"x"], "no")
    TypeError: block is 'no'
queue.put(b"x", persistent="no")
    TypeError: persistent is 'no'
queue.get(auto_ack="no")
    TypeError: auto_ack is 'no'
queue.consume(print, ack=True)
    ConfigError: ack is True: give "return"
queue.consume(print, ack="auto")
    ConfigError: ack is 'auto': give "return"
queue.consume(print, exclusive="no")
    TypeError: exclusive is 'no'
queue.consume(print, cancel_on_failover=1)
    TypeError: cancel_on_failover is 1
held(queue).nack("no")
    TypeError: requeue is 'no': it must be True or False
queue.put("text")
    TypeError: not str; text.encode()
queue.put({"a": 1})
    TypeError: not dict; json.dumps(data)
queue.put(None)
    TypeError: not NoneType; an empty one is b''
queue.put_many([b"a", None])
    TypeError: not NoneType; an empty one is b''
queue.put_many(b"abc")
    TypeError: a list of bodies, not one
queue.put(bytes(17 << 20))
    ValueError: message_bytes_max 16777216; split it, or raise
queue.put(b"x", headers={"at": datetime.now(UTC)})
    TypeError: 'at'; datetime; values str, bytes
queue.put(b"x", headers="a=b")
    TypeError: of type str; give a mapping
queue.put(b"x", tll=5)
    TypeError: 'tll'; did you mean 'ttl'?
queue.put(b"x", routing_key="a")
    TypeError: 'routing_key'; it takes headers, message_id
queue.put(b"x", ttl="5 weeks")
    ConfigError: ttl is '5 weeks'; a number of seconds, a text with a unit, as '30s'; or a timedelta
queue.put(b"x", ttl="5")
    ConfigError: ttl is '5'; a text with a unit
queue.put(b"x", priority=100)
    ConfigError: priority is 100; from 0 to 31
queue.get(1)
    TypeError: block is 1; Seconds to wait are timeout=
queue.get(5)
    TypeError: block is 5; Seconds to wait are timeout=
queue.get(timeout="3")
    TypeError: the timeout is '3'; a number of seconds
queue.put(b"x").result("3")
    TypeError: the timeout is '3'; a number of seconds
queue.get(timeout=0.05)
    Empty: no message ready within 0.05 s; is it the right name?; passive=True
(queue.put(b"x").result(WAIT_S), queue.browse()[0].ack().result(WAIT_S))
    AckRefused: only browsed; that get() returns
queue.consume(print, prefetch="10")
    ConfigError: prefetch is '10'; 0 for no bound
pickle.dumps(held(queue))
    TypeError: of 1 bytes; held by this process; send its body
queue.put_many("abc")
    TypeError: a list of bodies, not one
queue.put(5)
    TypeError: not int
queue.put(b"x", key=4)
    TypeError: a key is a str or bytes, not int
queue.put(b"x", headers={1: "x"})
    TypeError: header
queue.put(b"x", headers={"x": [{1}]})
    TypeError: header
queue.put(b"x", headers=["a"])
    TypeError: headers is of type list
queue.put(b"x", message_id=HALF)
    ConfigError: cannot be written as UTF-8
queue.put(b"x", on_confirm=5)
    TypeError: on_confirm is 5
queue.put_many([b"x"], on_confirm="f")
    TypeError: on_confirm is 'f'
queue.put(b"x", timeout="soon")
    TypeError: the timeout is 'soon'
queue.put(b"x", timeout=-1)
    ValueError: timeout
queue.get(timeout=float("nan"))
    ValueError: the timeout is nan
queue.get_many(1, "1")
    TypeError: the timeout is '1'
queue.get_many(0)
    ValueError: at least 1
queue.get_many("3")
    TypeError: count_max is '3'
queue.browse(1, 2.5)
    TypeError: count_max is 2.5
queue.browse("x")
    TypeError: start is 'x'
queue.browse(HUGE)
    ValueError: start is 1180591620717411303424
queue.browse(-5)
    ValueError: start is -5
queue.consume(3)
    TypeError: callback is 3
queue.consume(print, on_cancel=3)
    TypeError: on_cancel is 3
queue.consume(print, prefetch=2.5)
    ConfigError: prefetch is 2.5
queue.ack_many(["a"])
    TypeError: ['a'] is not what get()
queue.transaction().__enter__().ack("m")
    TypeError: 'm' is not what get()
[(message := held(queue)), message.ack(), message.ack().result(WAIT_S)]
    AckRefused: settled before; once
queue.as_queue(ack="put")
    ConfigError: 'get' or 'task_done'
queue.as_queue(ack=["get"])
    ConfigError: 'get' or 'task_done'
queue.get_many(HUGE)
    ValueError: count_max is 1180591620717411303424
queue.browse(True)
    TypeError: start is True
queue.put_many(5)
    TypeError: a list of bodies, not one int
held(queue).ack_and_put(5, b"x")
    TypeError: named by a str or a handle, not 5
queue.ack_many(5)
    TypeError: 5 is not what get()
"""
"""On each face that has messages."""

ON_A_THREADS_QUEUE = r"""
queue.put(HALF)
    TypeError: not str; encode
queue.consume(queue.name.strip() and None)
    TypeError: callback is None; give a function
queue.consume(coroutine_function)
    TypeError: async def; mirrorq.aio
queue.close(), queue.put(b"x")
    ShutDown: 'q' is closed; by its user
queue.as_queue().put({"a": 1})
    TypeError: not dict; encode it
pickle.dumps(queue.put(b"x"))
    TypeError: Confirmation; ends in this process; send its result
pickle.dumps(queue.as_queue())
    TypeError: as_queue() of 'q'; pickle the handle
queue.as_queue(dumps=pickle.dumps, loads=pickle.loads).put(lambda: 1)
    Exception: queue 'q'; pickle.dumps; type function
bulk.extent("q")
    TypeError: bulk.extent() takes a mirrorq.MirroredQueue, not 'q'; queue.handle
bulk.lease(queue, -1)
    ValueError: count_max is -1
bulk.lease(queue, timeout="5")
    TypeError: the timeout is '5'
bulk.claim(queue, timeout="5")
    TypeError: the timeout is '5'
bulk.extent(queue, "5")
    TypeError: the timeout is '5'
queue.wait_for_confirms("5")
    TypeError: the timeout is '5'
queue.redrive("3")
    ValueError: count_max is '3'
bulk.claim(queue, label=4)
    ConfigError: a label is a string, not 4
bulk.reader(queue).read("a", 3)
    TypeError: first is 'a'
bulk.reader(queue).live_ranges(-1, 3)
    ValueError: first is -1
bulk.reader(queue).sequence_at(float("nan"))
    ValueError: timestamp is nan
"""
"""On the faces for threads only."""

ON_A_HOST = r"""
host.queue("r", dead_letter_queue="r")
    ConfigError: queue 'r' cannot be its own dead-letter queue
host.queue("r", max_length=0)
    ConfigError: max-length is a whole number from 1
host.queue("q", mesage_ttl=5)
    TypeError: 'mesage_ttl'; did you mean 'message_ttl'?
host.queue("q", durable=False)
    PreconditionFailed: durable=True, not False; passive=True, or under another name
host.queue("job", passive=True)
    QueueNotFound: no queue is named 'job'; correct the name
host.queue("")
    ConfigError: 1 to 255 characters
host.queue("q", timeout="3")
    TypeError: the timeout is '3'; a number of seconds
host.exchange("news", passive=True)
    QueueNotFound: no exchange is named 'news'; declare it
host.exchange("news", "fan-out")
    ConfigError: one of direct, fanout, topic, headers; 'fan-out'
host.exchange("e", "topic").bind("q", "k", arguments=[1])
    ConfigError: arguments of a binding are [1]: give a mapping
host.exchange("e", "direct").bind("nope", "k")
    QueueNotFound: no queue is named 'nope'; declare it first
host.set_policy("p", "^q$", {"ha-mod": "all"})
    PolicyError: 'ha-mod'; the keys are; ha-mode
host.set_policy("p", "^q$", {"ha-mode": "exactly", "ha-params": "2"})
    PolicyError: ha-params is a number; '2'
host.set_policy("p", "*", {"ha-mode": "all"})
    PolicyError: '*'; not a regular expression; .* matches every name
host.queue(b"q")
    ConfigError: a queue's name is a string, not b'q'
host.queue(HALF)
    ConfigError: cannot be written as UTF-8
host.queue("x" * 256)
    ConfigError: 1 to 255 characters, not 256
host.queue("r", durable="no")
    TypeError: durable is 'no': it must be True or False
host.queue("r", passive=1)
    TypeError: passive is 1: it must be True or False
host.clear_policy(HALF)
    ConfigError: this cannot be asked
host.transfer_master(HALF, "a")
    ConfigError: TransferMaster
host.forget_node(HALF)
    ConfigError: RemoveNode
host.disconnect(HALF)
    ConfigError: a client's name
host.disconnect("x", 4)
    ConfigError: a reason is a string, not 4
host.disconnect("nobody")
    PreconditionFailed: no node serves a client 'nobody'
host.exchange("e", "topic").bind("q", HALF)
    ConfigError: Bind
host.exchange(HALF, passive=True)
    ConfigError: an exchange's name
bulk.staged(host, 4, 1, "q")
    ConfigError: a transaction is a string
bulk.staged(host, "t", "x", "q")
    ConfigError: a version is a whole number
host.add_listener(3)
    TypeError: on_event is 3
host.queue("r", expires=0)
    ConfigError: expires is
host.queue("r", expires=-1)
    ConfigError: expires is
host.queue("r", expires="1 hour")
    ConfigError: expires is
host.queue("r", max_length=1.5)
    ConfigError: max-length is
host.queue("r", max_length=-1)
    ConfigError: max-length is
host.queue("r", overflow="drop")
    ConfigError: overflow is
host.queue("r", dead_letter_queue="")
    ConfigError: dead-letter-queue is
host.queue("r", delivery_limit=True)
    ConfigError: delivery-limit is
host.queue("r", consumer_timeout=timedelta(seconds=-1))
    ConfigError: consumer_timeout is -1.0
host.queue("r", ha_mode="all")
    TypeError: ha_mode
"""
"""On a node and on a client, in a thread or in a loop."""


def said(kind: type[BaseException], make: Callable[[], object]) -> str:
    with pytest.raises(kind) as raised:
        make()
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def check(stage: Stage, call: str, expected: str, **names: Any) -> None:
    """What is wrong is said, and the queue goes on."""
    kind, _, words = expected.partition(": ")
    error = getattr(mirrorq, kind, None) or getattr(builtins, kind)
    text = said(error, lambda: eval(call, NAMES | names))
    assert [word for word in words.split("; ") if word not in text] == [], text
    with stage.queue("q") as queue:
        queue.purge()
        queue.put(b"goes on").result(WAIT_S)
        assert taken(queue, 1) == [b"goes on"]


@pytest.mark.parametrize(("call", "expected"), mistakes(ON_A_QUEUE))
def test_on_a_queue(stage: Stage, call: str, expected: str) -> None:
    check(stage, call, expected, queue=stage.queue("q"))


@case(THREADS)
@pytest.mark.parametrize(("call", "expected"), mistakes(ON_A_THREADS_QUEUE))
def test_on_a_queue_of_threads(stage: Stage, call: str, expected: str) -> None:
    check(stage, call, expected, queue=stage.queue("q"))


@case(ONE_RING)
@pytest.mark.parametrize(("call", "expected"), mistakes(ON_A_HOST))
def test_on_a_host(stage: Stage, call: str, expected: str) -> None:
    stage.queue("q").close()
    check(stage, call, expected, host=stage.host)
    names = [row.name for row in stage.host.queues()]
    assert (names, stage.host.policies()) == (["q"], [])


class Text(str):
    """As numpy's texts are, and those of templates."""


class Number(int):
    """As some libraries' numbers are."""


@case(MESSAGES)
def test_a_subclass_of_a_plain_type_is_as_good(stage: Stage) -> None:
    """msgspec packs none of them, so one once ended the thread of a node."""
    queue = stage.queue(Text("q"))
    headers = {Text("a"): Text("b"), "n": [Number(3)]}
    queue.put(b"x", headers=headers, message_id=Text("m"), priority=Number(2)).result(WAIT_S)
    stage.exchange(Text("news"), Text("topic")).bind(Text("q"), Text("k"))
    stage.host.set_policy(Text("p"), Text("^none$"), {Text("message-ttl"): Text("5s")})
    message = got(queue, 1)[0]
    assert (message.headers, message.message_id) == ({"a": "b", "n": [3]}, "m")
    assert {type(one) for one in (message.message_id, *message.headers)} == {str}
    assert "q" in [row.name for row in stage.host.queues()]


REFUSED: list[tuple[type[Face], str]] = [(face, name) for face in FACES for name in face.refusals]


@pytest.mark.parametrize(("face", "name"), REFUSED, ids=[f"{f.name}-{n}" for f, n in REFUSED])
def test_what_a_face_has_not_is_refused(stage: Stage, face: type[Face], name: str) -> None:
    """As the documentation says, with what to do; nothing is made."""
    kind, words, call = face.refusals[name]
    queue = stage.queue("q")
    assert words in said(kind, lambda: call(queue))
    assert [row.name for row in stage.host.queues()] == ["q"]


LIMIT = 4000
LARGE: dict[str, dict[str, Any]] = {
    "headers": {"headers": {"x": "h" * LIMIT}},
    "message_id": {"message_id": "m" * LIMIT},
    "key": {"key": "k" * LIMIT},
    "reply_to": {"reply_to": "r" * LIMIT},
    "together": {"headers": {"x": "h" * (LIMIT // 2)}, "message_id": "m" * (LIMIT // 2)},
}


@case(MESSAGES, message_bytes_max=LIMIT, frame_bytes_max=12_000)
@pytest.mark.parametrize("what", LARGE)
def test_all_that_a_message_carries_counts(stage: Stage, what: str) -> None:
    """Each call that puts says both numbers, and nothing is put."""
    options = LARGE[what]
    queue, source = stage.queue("q"), stage.queue("source")
    plain = {name: value for name, value in options.items() if name != "key"}
    body = b"b" if plain == options else bytes(LIMIT)
    exchange = stage.exchange("news", "fanout")
    ring = "q#shard0" if stage.face.name == "sharded" else "q"
    node = stage.cluster.node(stage.cluster.running[0])
    fill(source, 1)
    message = source.get(timeout=WAIT_S)

    def transaction() -> None:
        with queue.transaction() as step:
            step.put(b"b", **options)

    calls: list[Callable[[], object]] = [
        lambda: queue.put(b"b", **options),
        lambda: queue.put_many([b"b"], **options),
        lambda: exchange.publish("k", body, **plain),
        transaction,
        lambda: message.ack_and_put("q", b"b", **options),
        lambda: bulk.staged(node, "t", 1, ring).attempt(0, 0).put(b"b", **options),
    ]
    for call in calls:
        text = said(MessageTooLarge, call)
        assert f"message_bytes_max {LIMIT}" in text
        assert [word for word in text.split() if word.isdigit() and int(word) > LIMIT]
    assert stage.messages("q") == 0
    message.ack().result(WAIT_S)


@case(ITEMS, message_bytes_max=1000, frame_bytes_max=12_000)
def test_the_largest_message_comes(stage: Stage) -> None:
    """Up to the last byte; one byte more does not."""
    queue = stage.queue("q")
    own = 5 if stage.face.name == "sharded" else 0  # of the key
    queue.put(bytes(1000 - own))
    assert len(queue.get(timeout=WAIT_S).body) == 1000 - own
    for size in (1001 - own, 100_000):
        with pytest.raises(MessageTooLarge, match=f"{size} (of body|bytes.*max 1000)"):
            queue.put(bytes(size))


@case(MESSAGES, message_bytes_max=1000, frame_bytes_max=12_000)
def test_properties_count_to_the_last_byte(stage: Stage) -> None:
    queue = stage.queue("q")
    # The sharded face adds a key to each message.
    own = 150
    size = next(size for size in range(1000, 0, -1) if _is_put(queue, size, {"x": "h" * own}))
    message = got(queue, 1)[0]
    assert (len(message.body), len(message.headers["x"])) == (size, own)
    assert 1000 - own - 50 < size < 1000 - own


def _is_put(queue: Any, size: int, headers: dict[str, str]) -> bool:
    try:
        queue.put(bytes(size), headers=headers).result(WAIT_S)
    except MessageTooLarge:
        return False
    return True
