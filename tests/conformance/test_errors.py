"""Mistakes: what is wrong with a call is said at the call, by name and value, with what to do about
it. Nothing else happens: the handle, its host and all other handles go on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

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
from mirrorq import (
    AckRefused,
    ConfigError,
    Empty,
    Message,
    PolicyError,
    PreconditionFailed,
    QueueNotFound,
    ShutDown,
)
from mirrorq.api.queue import MessageTooLarge

HUGE = 2**70
HALF = "\ud800"
"""Half of a surrogate pair: a str that cannot be written."""

Mistake = tuple[type[BaseException], list[str], Callable[[Any], object]]
"""The exception, words of its text, and the call."""


def held(queue: Any) -> Message:
    queue.put(b"x").result(WAIT_S)
    message: Message = queue.get(timeout=WAIT_S)
    return message


def use_closed(queue: Any) -> None:
    queue.close()
    queue.put(b"x")


async def coroutine_function(message: Message) -> None:
    """Nothing awaits it in a thread."""


def policy(**definition: object) -> Callable[[Any], None]:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    return lambda host: host.set_policy("p", "^q$", named)


ON_A_QUEUE: dict[str, Mistake] = {
    "a text as body": (TypeError, ["not str", "text.encode()"], lambda q: q.put("text")),
    "a dict as body": (TypeError, ["not dict", "json.dumps(data)"], lambda q: q.put({"a": 1})),
    "nothing as body": (TypeError, ["not NoneType", "an empty one is b''"], lambda q: q.put(None)),
    "nothing among many": (
        TypeError,
        ["not NoneType", "an empty one is b''"],
        lambda q: q.put_many([b"a", None]),
    ),
    "one body for many": (TypeError, ["a list of bodies, not one"], lambda q: q.put_many(b"abc")),
    "a body that is too large": (
        ValueError,
        ["message_bytes_max 16777216", "split it, or raise"],
        lambda q: q.put(bytes(17 << 20)),
    ),
    "an object in headers": (
        TypeError,
        ["'at'", "datetime", "values str, bytes"],
        lambda q: q.put(b"x", headers={"at": datetime.now(UTC)}),
    ),
    "no mapping as headers": (
        TypeError,
        ["of type str", "give a mapping"],
        lambda q: q.put(b"x", headers="a=b"),
    ),
    "a misspelt option of put": (
        TypeError,
        ["'tll'", "did you mean 'ttl'?"],
        lambda q: q.put(b"x", tll=5),
    ),
    "an option that nobody has": (
        TypeError,
        ["'routing_key'", "it takes headers, message_id"],
        lambda q: q.put(b"x", routing_key="a"),
    ),
    "a time with its unit": (
        ConfigError,
        ["ttl is '5s'", "a number of seconds, or a timedelta"],
        lambda q: q.put(b"x", ttl="5s"),
    ),
    "a priority of 100": (
        ConfigError,
        ["priority is 100", "from 0 to 31"],
        lambda q: q.put(b"x", priority=100),
    ),
    "seconds in the place of block": (
        TypeError,
        ["block is 5", "Seconds to wait are timeout="],
        lambda q: q.get(5),
    ),
    "a timeout as text": (
        TypeError,
        ["the timeout is '3'", "a number of seconds"],
        lambda q: q.get(timeout="3"),
    ),
    "a confirm's timeout as text": (
        TypeError,
        ["the timeout is '3'", "a number of seconds"],
        lambda q: q.put(b"x").result("3"),
    ),
    "an empty queue": (
        Empty,
        ["no message ready within 0.05 s", "is it the right name?", "passive=True"],
        lambda q: q.get(timeout=0.05),
    ),
    "what was browsed is acked": (
        AckRefused,
        ["only browsed", "that get() returns"],
        lambda q: (q.put(b"x").result(WAIT_S), q.browse()[0].ack().result(WAIT_S)),
    ),
    "a prefetch as text": (
        ConfigError,
        ["prefetch is '10'", "0 for no bound"],
        lambda q: q.consume(print, prefetch="10"),
    ),
    "a message for another process": (
        TypeError,
        ["of 1 bytes", "held by this process", "send its body"],
        lambda q: pickle.dumps(held(q)),
    ),
    "no list for many": (TypeError, ["a list of bodies, not one"], lambda q: q.put_many("abc")),
    "a number as body": (TypeError, ["not int"], lambda q: q.put(5)),
    "a key of no type": (
        TypeError,
        ["a key is a str or bytes, not int"],
        lambda q: q.put(b"x", key=4),
    ),
    "a key of headers": (TypeError, ["header"], lambda q: q.put(b"x", headers={1: "x"})),
    "an object deep in headers": (
        TypeError,
        ["header"],
        lambda q: q.put(b"x", headers={"x": [{1}]}),
    ),
    "a list as headers": (
        TypeError,
        ["headers is of type list"],
        lambda q: q.put(b"x", headers=["a"]),
    ),
    "a message id that is no UTF-8": (
        ConfigError,
        ["cannot be written as UTF-8"],
        lambda q: q.put(b"x", message_id=HALF),
    ),
    "no callback of a put": (TypeError, ["on_confirm is 5"], lambda q: q.put(b"x", on_confirm=5)),
    "no callback of many": (
        TypeError,
        ["on_confirm is 'f'"],
        lambda q: q.put_many([b"x"], on_confirm="f"),
    ),
    "no listener": (TypeError, ["function is None"], lambda q: q.on_confirm(None)),
    "a put's timeout as text": (
        TypeError,
        ["the timeout is 'soon'"],
        lambda q: q.put(b"x", timeout="soon"),
    ),
    "a put's timeout below 0": (ValueError, ["timeout"], lambda q: q.put(b"x", timeout=-1)),
    "a timeout that is no number": (
        ValueError,
        ["the timeout is nan"],
        lambda q: q.get(timeout=float("nan")),
    ),
    "a timeout of many as text": (
        TypeError,
        ["the timeout is '1'"],
        lambda q: q.get_many(1, "1"),
    ),
    "no count": (ValueError, ["at least 1"], lambda q: q.get_many(0)),
    "a count as text": (TypeError, ["count_max is '3'"], lambda q: q.get_many("3")),
    "a count in halves": (TypeError, ["count_max is 2.5"], lambda q: q.browse(1, 2.5)),
    "a start as text": (TypeError, ["start is 'x'"], lambda q: q.browse("x")),
    "a start beyond all": (ValueError, [f"start is {HUGE}"], lambda q: q.browse(HUGE)),
    "a start below 0": (ValueError, ["start is -5"], lambda q: q.browse(-5)),
    "no callback": (TypeError, ["callback is 3"], lambda q: q.consume(3)),
    "no callback of an end": (
        TypeError,
        ["on_cancel is 3"],
        lambda q: q.consume(print, on_cancel=3),
    ),
    "a prefetch in halves": (
        ConfigError,
        ["prefetch is 2.5"],
        lambda q: q.consume(print, prefetch=2.5),
    ),
    "a text is acked": (TypeError, ["['a'] is not what get()"], lambda q: q.ack_many(["a"])),
    "a text is acked in a step": (
        TypeError,
        ["'m' is not what get()"],
        lambda q: q.transaction().ack("m"),
    ),
    "acked twice in as many calls": (
        AckRefused,
        ["settled before", "once"],
        lambda q: [message := held(q), message.ack(), message.ack().result(WAIT_S)],
    ),
    "another adapter's ack": (
        ConfigError,
        ["'get' or 'task_done'"],
        lambda q: q.as_queue(ack="put"),
    ),
}
"""On each face that has messages."""

ON_A_THREADS_QUEUE: dict[str, Mistake] = {
    "a text that is no UTF-8": (TypeError, ["not str", "encode"], lambda q: q.put("\udcff")),
    "a callback that was called": (
        TypeError,
        ["callback is None", "give a function"],
        lambda q: q.consume(q.name.strip() and None),
    ),
    "a coroutine function in a thread": (
        TypeError,
        ["async def", "mirrorq.aio"],
        lambda q: q.consume(coroutine_function),
    ),
    "used after close": (ShutDown, ["'q' is closed", "by its user"], use_closed),
    "objects without dumps": (
        TypeError,
        ["not dict", "encode it"],
        lambda q: q.as_queue().put({"a": 1}),
    ),
    "a confirmation for another process": (
        TypeError,
        ["Confirmation", "ends in this process", "send its result"],
        lambda q: pickle.dumps(q.put(b"x")),
    ),
    "an adapter for another process": (
        TypeError,
        ["as_queue() of 'q'", "pickle the handle"],
        lambda q: pickle.dumps(q.as_queue()),
    ),
    "what pickle cannot": (
        Exception,
        ["queue 'q'", "pickle.dumps", "type function"],
        lambda q: q.as_queue(dumps=pickle.dumps, loads=pickle.loads).put(lambda: 1),
    ),
    "no count of a lease": (ValueError, ["count_max is -1"], lambda q: q.lease(-1)),
    "a number as label": (
        ConfigError,
        ["a label is a string, not 4"],
        lambda q: q.claim(label=4),
    ),
    "a text as sequence": (TypeError, ["first is 'a'"], lambda q: q.read("a", 3)),
    "a sequence below 0": (ValueError, ["first is -1"], lambda q: q.live_ranges(-1, 3)),
    "a time that is no number": (
        ValueError,
        ["timestamp is nan"],
        lambda q: q.sequence_at(float("nan")),
    ),
}
"""On the faces for threads only."""

ON_A_HOST: dict[str, Mistake] = {
    "a misspelt argument of a declaration": (
        TypeError,
        ["'mesage_ttl'", "did you mean 'message_ttl'?"],
        lambda host: host.queue("q", mesage_ttl=5),
    ),
    "other properties": (
        PreconditionFailed,
        ["durable=True, not False", "passive=True, or under another name"],
        lambda host: host.queue("q", durable=False),
    ),
    "a misspelt queue": (
        QueueNotFound,
        ["no queue is named 'job'", "correct the name"],
        lambda host: host.queue("job", passive=True),
    ),
    "no name": (ConfigError, ["1 to 255 characters"], lambda host: host.queue("")),
    "a declaration's timeout as text": (
        TypeError,
        ["the timeout is '3'", "a number of seconds"],
        lambda host: host.queue("q", timeout="3"),
    ),
    "an exchange that is not there": (
        QueueNotFound,
        ["no exchange is named 'news'", "declare it"],
        lambda host: host.exchange("news", passive=True),
    ),
    "an exchange of no kind": (
        ConfigError,
        ["one of direct, fanout, topic, headers", "'fan-out'"],
        lambda host: host.exchange("news", "fan-out"),
    ),
    "bound to a queue that is not there": (
        QueueNotFound,
        ["no queue is named 'nope'", "declare it first"],
        lambda host: host.exchange("e", "direct").bind("nope", "k"),
    ),
    "an unknown key of a policy": (
        PolicyError,
        ["'ha-mod'", "the keys are", "ha-mode"],
        policy(ha_mod="all"),
    ),
    "a number as text in a policy": (
        PolicyError,
        ["ha-params is a number", "'2'"],
        policy(ha_mode="exactly", ha_params="2"),
    ),
    "a shell's pattern in a policy": (
        PolicyError,
        ["'*'", "not a regular expression", ".* matches every name"],
        lambda host: host.set_policy("p", "*", {"ha-mode": "all"}),
    ),
    "a name of bytes": (
        ConfigError,
        ["a queue's name is a string, not b'q'"],
        lambda host: host.queue(b"q"),
    ),
    "a name that is no UTF-8": (
        ConfigError,
        ["cannot be written as UTF-8"],
        lambda host: host.queue("\ud800"),
    ),
    "a name that is too long": (
        ConfigError,
        ["1 to 255 characters, not 256"],
        lambda host: host.queue("x" * 256),
    ),
    "durable as text": (
        ConfigError,
        ["durable is True or False, not 'no'"],
        lambda host: host.queue("r", durable="no"),
    ),
    "passive as a number": (
        ConfigError,
        ["passive is True or False, not 1"],
        lambda host: host.queue("r", passive=1),
    ),
    "a policy that is no UTF-8": (
        ConfigError,
        ["this cannot be asked"],
        lambda host: host.clear_policy(HALF),
    ),
    "a master that is no UTF-8": (
        ConfigError,
        ["TransferMaster"],
        lambda host: host.transfer_master(HALF, "a"),
    ),
    "a node that is no UTF-8": (ConfigError, ["RemoveNode"], lambda host: host.forget_node(HALF)),
    "a client that is no UTF-8": (
        ConfigError,
        ["a client's name"],
        lambda host: host.disconnect(HALF),
    ),
    "a number as reason": (
        ConfigError,
        ["a reason is a string, not 4"],
        lambda host: host.disconnect("x", 4),
    ),
    "a client that is not there": (
        PreconditionFailed,
        ["no node serves a client 'nobody'"],
        lambda host: host.disconnect("nobody"),
    ),
    "a binding that is no UTF-8": (
        ConfigError,
        ["Bind"],
        lambda host: host.exchange("e", "topic").bind("q", HALF),
    ),
    "an exchange that is no UTF-8": (
        ConfigError,
        ["an exchange's name"],
        lambda host: host.exchange(HALF, passive=True),
    ),
    "a number as transaction": (
        ConfigError,
        ["a transaction is a string"],
        lambda host: host.staged(4, 1, "q"),
    ),
    "a version as text": (
        ConfigError,
        ["a version is a whole number"],
        lambda host: host.staged("t", "x", "q"),
    ),
    "no listener": (TypeError, ["on_event is 3"], lambda host: host.add_listener(3)),
    **{
        f"the argument {name}={value!r}": (
            ConfigError,
            [name.partition("_")[0]],
            lambda host, given={name: value}: host.queue("r", **given),
        )
        for name, value in (
            ("expires", 0),
            ("expires", -1),
            ("expires", "1 h"),
            ("max_length", 1.5),
            ("max_length", -1),
            ("overflow", "drop"),
            ("dead_letter_queue", ""),
            ("delivery_limit", True),
            ("consumer_timeout", timedelta(seconds=-1)),
        )
    },
    "a policy's key as argument": (
        TypeError,
        ["ha_mode"],
        lambda host: host.queue("r", ha_mode="all"),
    ),
}
"""On a node and on a client, in a thread or in a loop."""


def said(stage: Stage, kind: type[BaseException], make: Callable[[], object]) -> str:
    with pytest.raises(kind) as raised:
        make()
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def check(stage: Stage, mistake: Mistake, target: Any) -> None:
    """What is wrong is said, and the queue goes on."""
    kind, words, make = mistake
    text = said(stage, kind, lambda: make(target))
    assert [word for word in words if word not in text] == [], text
    with stage.queue("q") as queue:
        queue.purge()
        queue.put(b"goes on").result(WAIT_S)
        assert taken(queue, 1) == [b"goes on"]


@pytest.mark.parametrize("mistake", ON_A_QUEUE)
def test_on_a_queue(stage: Stage, mistake: str) -> None:
    check(stage, ON_A_QUEUE[mistake], stage.queue("q"))


@case(THREADS)
@pytest.mark.parametrize("mistake", ON_A_THREADS_QUEUE)
def test_on_a_queue_of_threads(stage: Stage, mistake: str) -> None:
    check(stage, ON_A_THREADS_QUEUE[mistake], stage.queue("q"))


@case(ONE_RING)
@pytest.mark.parametrize("mistake", ON_A_HOST)
def test_on_a_host(stage: Stage, mistake: str) -> None:
    stage.queue("q").close()
    before = [row.name for row in stage.host.queues()]
    check(stage, ON_A_HOST[mistake], stage.host)
    assert [row.name for row in stage.host.queues()] == before
    assert stage.host.policies() == []


REFUSED: list[tuple[type[Face], str]] = [(face, name) for face in FACES for name in face.refusals]


@pytest.mark.parametrize(("face", "name"), REFUSED, ids=[f"{f.name}-{n}" for f, n in REFUSED])
def test_what_a_face_has_not_is_refused(stage: Stage, face: type[Face], name: str) -> None:
    """As the documentation says, with what to do; nothing is made."""
    kind, words, call = face.refusals[name]
    queue = stage.queue("q")
    assert words in said(stage, kind, lambda: call(queue))
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
        lambda: stage.host.staged("t", 1, ring).attempt(0, 0).put(b"b", **options),
    ]
    for call in calls:
        text = said(stage, MessageTooLarge, call)
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
