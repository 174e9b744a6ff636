"""The transport itself: what AMQP's methods do on mirrorq's queues and exchanges."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest
from amqp import exceptions as amqp
from tests.kit import DEADLINE_S, free_endpoint, until

import mirrorq
from mirrorq.contrib.kombu import arguments as told
from mirrorq.node.local import LocalFolder

Connecting = Callable[..., Any]
NEVER_S = 0.3
"""So long it is waited for what must not come."""


@pytest.fixture
def channel(connecting: Connecting) -> Any:
    return connecting().channel()


def put(channel: Any, key: str, *bodies: str, exchange: str = "", **options: Any) -> None:
    """Publish texts, one after the other."""
    headers = options.pop("headers", None)
    for body in bodies:
        message = channel.prepare_message(
            body.encode(), content_type="text/plain", headers=headers, properties=options
        )
        channel.basic_publish(message, exchange, key)


class Sink:
    """A consumer that keeps what it is given."""

    def __init__(self, channel: Any, queue: str, **options: Any) -> None:
        self.channel = channel
        self.messages: list[Any] = []
        self.tag = channel.basic_consume(queue, callback=self._take, **options)

    def _take(self, delivery: Any) -> None:
        self.messages.append(self.channel.message_to_python(delivery))

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    def wait(self, count: int) -> list[str]:
        """Drain until so many have come; their texts."""
        while len(self.messages) < count:
            self.channel.connection.drain_events(timeout=DEADLINE_S)
        return self.bodies


def nothing_comes(channel: Any) -> bool:
    """Whether nothing is delivered for a moment."""
    try:
        channel.connection.drain_events(timeout=NEVER_S)
    except socket.timeout:  # noqa: UP041
        return True
    return False


def held_and_ready(node: mirrorq.Node, queue: str) -> tuple[int, int]:
    """Messages unacknowledged and ready, as the queue's master knows."""
    with node.queue(queue, passive=True) as handle:
        handle.qsize()
        status = handle.status()
    return status.messages_unacknowledged, status.messages_ready


def settles_to(node: mirrorq.Node, queue: str, held: int, ready: int) -> None:
    """Wait until a queue has so many messages."""
    until(
        lambda: held_and_ready(node, queue) == (held, ready),
        lambda: held_and_ready(node, queue),
    )


def test_properties_and_headers_travel(channel: Any) -> None:
    """What a producer says of a message reaches its consumer, nested headers and None too."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    headers = {"lang": "py", "argsrepr": None, "stamps": {"a": [1, 2]}, "retries": 0}
    properties = {"correlation_id": "c", "reply_to": "r", "message_id": "m"}
    put(channel, "q", "hello", headers=headers, **properties, of_nobody=object())
    message = channel.message_to_python(channel.basic_get("q"))
    assert "of_nobody" not in message.properties
    assert (message.body, message.content_type) == (b"hello", "text/plain")
    assert message.headers == headers
    assert message.properties["correlation_id"] == "c"
    assert message.properties["reply_to"] == "r"
    assert message.delivery_info["routing_key"] == "q"
    assert message.delivery_info["redelivered"] is False


def test_a_message_of_mirrorq_itself(node: mirrorq.Node, channel: Any) -> None:
    """What was put without the transport is delivered with its body and its headers."""
    node.queue("q").put(b"\xff", headers={"a": 1}).result(DEADLINE_S)
    message = channel.message_to_python(channel.basic_get("q"))
    assert (message.body, message.headers) == (b"\xff", {"a": 1})
    assert message.content_type == "application/data"


def test_acks_and_rejections(node: mirrorq.Node, channel: Any) -> None:
    """ack and reject end a message, requeue brings it back marked, multiple means all before."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", "a", "b", "c", "d")
    sink = Sink(channel, "q")
    assert sink.wait(4) == ["a", "b", "c", "d"]
    settles_to(node, "q", 4, 0)
    sink.messages[0].ack()
    sink.messages[1].reject()
    settles_to(node, "q", 2, 0)
    sink.messages[2].requeue()
    assert sink.wait(5)[4] == "c"
    assert sink.messages[4].delivery_info["redelivered"] is True
    channel.basic_ack(sink.messages[4].delivery_tag, multiple=True)
    settles_to(node, "q", 0, 0)


def test_a_closed_channel_gives_back(node: mirrorq.Node, connecting: Connecting) -> None:
    """What a channel holds comes again, to another one; so does what basic_recover gives back."""
    connection = connecting()
    first, second = connection.channel(), connection.channel()
    first.queue_declare("q", durable=True, auto_delete=False)
    put(first, "q", "a", "b")
    sink = Sink(first, "q")
    sink.wait(2)
    first.basic_recover()
    assert sorted(sink.wait(4)[2:]) == ["a", "b"]
    first.close()
    other = Sink(second, "q")
    assert other.wait(2) == ["a", "b"]
    assert all(message.delivery_info["redelivered"] for message in other.messages)


def test_a_cancelled_consumer(node: mirrorq.Node, channel: Any) -> None:
    """It gets nothing more; what it holds can still be acked."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", "a")
    sink = Sink(channel, "q")
    sink.wait(1)
    channel.basic_cancel(sink.tag)
    put(channel, "q", "b")
    assert nothing_comes(channel)
    sink.messages[0].ack()
    settles_to(node, "q", 0, 1)


def test_prefetch(node: mirrorq.Node, channel: Any) -> None:
    """No more than the prefetch count is held; it may be raised while a consumer runs."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", *"abcde")
    channel.basic_qos(0, 2, False)
    sink = Sink(channel, "q")
    assert sink.wait(2) == ["a", "b"]
    assert nothing_comes(channel)
    assert held_and_ready(node, "q") == (2, 3)
    sink.messages[0].ack()
    assert sink.wait(3) == ["a", "b", "c"]
    assert nothing_comes(channel)
    channel.basic_qos(0, 3, False)
    assert sink.wait(4) == ["a", "b", "c", "d"]
    channel.basic_qos(0, 0, False)
    assert sink.wait(5) == ["a", "b", "c", "d", "e"]


def test_no_ack(node: mirrorq.Node, channel: Any) -> None:
    """A consumer without acks ends each message as it is dispatched, and none before."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", "a", "b")
    sink = Sink(channel, "q", no_ack=True)
    sink.wait(2)
    settles_to(node, "q", 0, 0)
    channel.basic_cancel(sink.tag)
    put(channel, "q", "c")
    assert channel.basic_get("q", no_ack=True).message.body == b"c"
    settles_to(node, "q", 0, 0)
    assert channel.basic_get("q") is None


def test_priorities_and_time_to_live(channel: Any) -> None:
    """The higher comes first; what has expired does not come."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", "low", priority=1)
    put(channel, "q", "gone", expiration="0")
    put(channel, "q", "high", priority=9)
    put(channel, "q", "above all", priority=255)
    got = [channel.basic_get("q").message.body for _ in range(3)]
    assert got == [b"above all", b"high", b"low"]
    assert channel.basic_get("q") is None


@pytest.mark.parametrize(
    ("kind", "bindings", "key", "reached"),
    [
        ("direct", {"a": "x", "b": "y", "c": "x"}, "x", "ac"),
        ("topic", {"a": "*.red", "b": "#", "c": "dog.*"}, "cat.red", "ab"),
        ("fanout", {"a": "", "b": "", "c": ""}, "whatever", "abc"),
    ],
)
def test_exchanges(
    connecting: Connecting, kind: str, bindings: dict[str, str], key: str, reached: str
) -> None:
    """What one connection has bound, another one's message reaches, each queue once."""
    here, there = connecting().channel(), connecting().channel()
    here.exchange_declare("ex", kind)
    for queue, pattern in bindings.items():
        here.queue_declare(queue, durable=True, auto_delete=False)
        here.queue_bind(queue, "ex", pattern)
    put(there, key, "m", exchange="ex")
    for queue in bindings:
        got = here.basic_get(queue, no_ack=True)
        assert (got is not None) == (queue in reached)
        assert here.basic_get(queue) is None
    here.queue_unbind("a", "ex", bindings["a"])
    put(here, key, "m", exchange="ex")
    assert here.basic_get("a") is None
    here.exchange_delete("ex")
    with pytest.raises(amqp.NotFound, match="no exchange is named"):
        put(connecting().channel(), key, "m", exchange="ex")


def test_a_binding_that_another_has_just_made(connecting: Connecting) -> None:
    """Who answers to a direct exchange reaches the queue that its asker has bound before it asked,
    though the exchange was known here before that."""
    asker, worker = connecting().channel(), connecting().channel()
    worker.exchange_declare("replies")
    put(worker, "nobody", "m", exchange="replies")
    for number in range(20):
        name = f"reply {number}"
        asker.queue_declare(name)
        asker.queue_bind(name, "replies", name)
        put(worker, name, "m", exchange="replies")
        assert asker.basic_get(name, no_ack=True) is not None


def test_one_message_of_each_id_where_that_is_asked(connecting: Connecting) -> None:
    """Over connections; a queue and an exchange; what has no id is no repeat."""
    asked = connecting(unique="message_id").channel()
    other = connecting().channel()
    asked.exchange_declare("ex", "fanout")
    asked.queue_declare("q", durable=True, auto_delete=False)
    asked.queue_bind("q", "ex", "")
    for _ in range(2):
        put(asked, "q", "1", message_id="one")
        put(asked, "q", "1", exchange="ex", message_id="one")
        put(asked, "q", "none")
    put(connecting(unique="message_id").channel(), "q", "1", message_id="one")
    assert asked.queue_declare("q", passive=True).message_count == 3
    put(other, "q", "1", message_id="one")
    assert asked.queue_declare("q", passive=True).message_count == 4


def test_headers_exchange(channel: Any) -> None:
    """A binding's arguments are compared with the message's headers."""
    channel.exchange_declare("ex", "headers")
    channel.queue_declare("q", durable=True, auto_delete=False)
    channel.queue_bind("q", "ex", arguments={"x-match": "all", "colour": "red", "size": 3})
    put(channel, "", "no", exchange="ex", headers={"colour": "red", "size": 4})
    put(channel, "", "yes", exchange="ex", headers={"colour": "red", "size": 3, "more": None})
    assert channel.basic_get("q", no_ack=True).message.body == b"yes"
    assert channel.basic_get("q") is None


def test_what_reaches_no_queue(connecting: Connecting) -> None:
    """It is dropped, as AMQP says; with mandatory it is returned to its producer."""
    returned: list[tuple[Any, ...]] = []
    producer = kombu.Producer(connecting(), on_return=lambda *what: returned.append(what))
    producer.publish("a", routing_key="nobody")
    assert returned == []
    producer.publish("b", routing_key="nobody", mandatory=True)
    [(error, exchange, key, message)] = returned
    assert isinstance(error, amqp.NoConsumers)
    assert (exchange, key, message.body) == ("", "nobody", b"b")


def test_queues(node: mirrorq.Node, channel: Any) -> None:
    """Declaring tells what is in it; purge, delete and their conditions; errors as AMQP's."""
    name = channel.queue_declare(auto_delete=False).queue
    assert name.startswith("amq.gen-")
    put(channel, name, "a", "b")
    assert channel.queue_declare(name, passive=True)[1:] == (2, 0)
    assert channel.queue_purge(name) == 2
    put(channel, name, "c")
    with pytest.raises(amqp.PreconditionFailed, match="has 1 message"):
        channel.queue_delete(name, if_empty=True)
    with pytest.raises(amqp.PreconditionFailed, match="durable"):
        channel.queue_declare(name, durable=True, auto_delete=False)
    assert channel.queue_delete(name) == 1
    assert channel.queue_delete(name) == 0
    with pytest.raises(amqp.NotFound):
        channel.queue_declare(name, passive=True)
    with pytest.raises(amqp.NotFound):
        channel.basic_get(name)


def test_a_queue_that_is_made_anew(node: mirrorq.Node, channel: Any) -> None:
    """Who has published to a queue and taken from it finds the next one of its name."""
    for body in ("first", "second"):
        channel.queue_declare("q", durable=True, auto_delete=False)
        put(channel, "q", body)
        assert channel.basic_get("q", no_ack=True).message.body == body.encode()
        with node.queue("q") as other:
            other.delete()


def test_a_worker_waits_for_the_control_queue_of_the_one_before(connecting: Connecting) -> None:
    """A killed worker's is kept for a while: the next of its name has it when it is free."""
    former = connecting()
    former.channel().queue_declare("w@h.celery.pidbox", exclusive=True)
    ending = threading.Timer(0.3, former.close)
    ending.start()
    try:
        made = connecting().channel().queue_declare("w@h.celery.pidbox", exclusive=True)
        assert made.queue == "w@h.celery.pidbox"
    finally:
        ending.join()


def test_auto_delete_and_exclusive(node: mirrorq.Node, connecting: Connecting) -> None:
    """An auto-deleted queue goes with its last consumer, an exclusive one with its connection."""
    connection = connecting()
    channel = connection.channel()
    channel.queue_declare("auto", auto_delete=True)
    channel.queue_declare("mine", exclusive=True)
    other = connecting().channel()
    put(other, "mine", "others may publish")
    with pytest.raises(amqp.PreconditionFailed, match="exclusive"):
        other.queue_declare("mine", exclusive=True)
    with pytest.raises(amqp.PreconditionFailed, match="exclusive"):
        other.basic_get("mine")
    assert node.queue("mine", passive=True).status().exclusive
    assert connection.channel().basic_get("mine", no_ack=True) is not None
    channel.basic_cancel(Sink(channel, "auto").tag)
    connection.close()
    until(lambda: not node.queues(), node.queues)


def test_a_queue_ends_its_consumer(node: mirrorq.Node, channel: Any) -> None:
    """A consumer whose queue somebody deletes is told by what has kombu declare anew."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    sink = Sink(channel, "q")
    with pytest.raises(amqp.NotAllowed, match="cancel it first"):
        channel.basic_consume("q", callback=print, consumer_tag=sink.tag)
    node.queue("q").delete()
    with pytest.raises(amqp.ConsumerCancelled, match="'q' has ended"):
        channel.connection.drain_events(timeout=DEADLINE_S)


def test_flow(channel: Any) -> None:
    """Deliveries wait while the flow is stopped, and go on in their order."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    sink = Sink(channel, "q")
    channel.flow(False)
    put(channel, "q", "a", "b")
    end = time.monotonic() + NEVER_S
    while time.monotonic() < end:
        assert nothing_comes(channel) or sink.bodies == []
    assert sink.bodies == []
    channel.flow(True)
    assert sink.wait(2) == ["a", "b"]


def test_drain_times_out_and_callbacks_run_in_it(channel: Any) -> None:
    """Nothing is dispatched but in drain_events, on the thread that calls it."""
    with pytest.raises(socket.timeout):
        channel.connection.drain_events(timeout=0)
    channel.queue_declare("q", durable=True, auto_delete=False)
    threads: list[threading.Thread] = []
    channel.basic_consume("q", callback=lambda _: threads.append(threading.current_thread()))
    put(channel, "q", "a")
    channel.connection.drain_events(timeout=DEADLINE_S)
    assert threads == [threading.current_thread()]


def test_what_a_cancelled_consumer_was_to_get_ends_no_wait(
    node: mirrorq.Node, channel: Any
) -> None:
    """It goes back, and the drain waits for somebody's message."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", "a", "b")
    gone = Sink(channel, "q")
    settles_to(node, "q", 2, 0)
    channel.basic_cancel(gone.tag)
    sink = Sink(channel, "q")
    channel.connection.drain_events(timeout=DEADLINE_S)
    assert gone.bodies == []
    assert sink.bodies
    assert sorted(sink.wait(2)) == ["a", "b"]


def test_an_eta(connecting: Connecting, node: mirrorq.Node) -> None:
    """A task that is due later waits in its queue, or where told so in the worker."""
    waits, comes = connecting().channel(), connecting(eta="worker").channel()
    waits.queue_declare("q", durable=True, auto_delete=False)
    headers = {"task": "add", "eta": "2999-01-01T00:00:00+00:00"}
    put(waits, "q", "later", headers=headers)
    put(waits, "q", "past", headers={**headers, "eta": "1999-01-01T00:00:00+00:00"})
    put(comes, "q", "at the worker", headers=headers)
    put(comes, "q", "no task", headers={"eta": headers["eta"]})
    got = [waits.basic_get("q", no_ack=True).message.body for _ in range(3)]
    assert got == [b"past", b"at the worker", b"no task"]
    assert waits.basic_get("q") is None
    assert node.queue("q").status().messages == 1


def test_nobody_listens() -> None:
    """A connection to where nobody listens fails at once, with an error that kombu retries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"mirrorq://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(kombu.exceptions.OperationalError, match="no node listens"):
            kombu.Connection(url).ensure_connection(max_retries=1, interval_start=0)


def test_an_alternate_names_several_hosts_and_options(node: mirrorq.Node) -> None:
    """Joined by `;`, as the page has it: where the first URL's nodes are down the next is tried."""
    here = node.listening.removeprefix("tcp://")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        url = f"mirrorq://{nobody},{nobody}//;mirrorq://{nobody},{here}?timeout=30"
        with kombu.Connection(url, connect_timeout=DEADLINE_S) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            connection.default_channel.queue_declare("q", durable=True, auto_delete=False)
            assert connection.default_channel.queue_declare("q", passive=True).message_count == 0
            clone = connection.clone()
            clone.ensure_connection(max_retries=1, interval_start=0)
            clone.release()
        with pytest.raises(kombu.exceptions.OperationalError, match="no node listens"):
            kombu.Connection(f"mirrorq://{nobody};mirrorq://{nobody},{nobody}").ensure_connection(
                max_retries=2, interval_start=0
            )


def test_a_closed_connection_has_no_file(connecting: Connecting) -> None:
    """An event loop that lets go of it late opens nothing."""
    connection = connecting().connection
    assert connection.fileno() >= 0
    connection.close()
    assert connection.fileno() == -1


def test_the_node_in_a_folder(tmp_path: Path) -> None:
    """mirrorq:///folder is this machine's node: started by who comes first, and again when it is
    killed; the connection goes on."""
    folder = tmp_path / "a"
    mirrorq.local(folder, linger=0, timeout=DEADLINE_S).close()
    with kombu.Connection(f"mirrorq://{folder}", connect_timeout=DEADLINE_S) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, auto_delete=False)
        put(channel, "q", "a")
        pid = LocalFolder.of(folder).pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        put(channel, "q", "b")
        assert LocalFolder.of(folder).pid() not in (pid, None)
        assert [channel.basic_get("q").message.body for _ in range(2)] == [b"a", b"b"]
    with kombu.Connection(f"mirrorq://{folder}", connect_timeout=DEADLINE_S) as connection:
        assert connection.channel().queue_declare("q", passive=True).message_count == 2


def test_a_forked_child_connects_anew(connecting: Connecting) -> None:
    """A connection of before a fork is closed for the child, which leaves the parent's alone."""
    connection = connecting()
    channel = connection.channel()
    channel.queue_declare("q", durable=True, auto_delete=False)
    child = os.fork()
    if not child:
        status = 1
        try:
            if not connection.connected:
                put(kombu.Connection(connection.as_uri()).channel(), "q", "from the child")
                connection.release()
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert channel.basic_get("q").message.body == b"from the child"


def test_confirms_that_are_not_waited_for(
    connecting: Connecting, node: mirrorq.Node, caplog: pytest.LogCaptureFixture
) -> None:
    """With `confirm` "later" all that was accepted arrives, in order; what is refused is told in
    the log. Who wants to know whether a message reaches a queue is told as before."""
    channel = connecting(confirm="later").channel()
    channel.queue_declare("q", durable=True, auto_delete=False)
    put(channel, "q", *map(str, range(500)))
    settles_to(node, "q", 0, 500)
    assert [channel.basic_get("q", no_ack=True).message.body for _ in range(500)] == [
        b"%d" % number for number in range(500)
    ]
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *told: returned.append(told))
    channel.basic_publish(channel.prepare_message("lost"), "", "nobody", mandatory=True)
    assert len(returned) == 1
    settles_to(node, "q", 0, 0)
    node.set_policy("short", "^q$", {"max-length": 1, "overflow": "reject-publish"})
    put(channel, "q", "fits")
    settles_to(node, "q", 0, 1)
    put(channel, "q", "does not")
    until(lambda: "a message whose confirm nobody waited for is lost" in caplog.text)


def test_an_option_that_is_none(connecting: Connecting) -> None:
    with pytest.raises(mirrorq.ConfigError, match="confirm is 'never'"):
        connecting(confirm="never").connect()


def test_a_queue_that_is_declared_again(channel: Any, node: mirrorq.Node) -> None:
    """It is asked for once in a while; one that was deleted over the connection is made anew."""
    terms = {"durable": True, "auto_delete": True}
    channel.queue_declare("q", **terms)
    for _ in range(3):
        assert channel.queue_declare("q", **terms).queue == "q"
    channel.queue_delete("q")
    channel.queue_declare("q", **terms)
    put(channel, "q", "one")
    assert channel.queue_declare("q", passive=True).message_count == 1


def test_a_task_that_expires_before_it_is_due_reaches_its_worker(channel: Any) -> None:
    """Which says so to who waits for its result; a queue would drop it and nobody would know."""
    channel.queue_declare("q", durable=True, auto_delete=False)
    eta = (datetime.now(UTC) + timedelta(seconds=0.2)).isoformat()
    put(channel, "q", "late", headers={"task": "shop.add", "eta": eta}, expiration="1")
    assert Sink(channel, "q").wait(1) == ["late"]


def test_a_reply_queue_that_went_meanwhile_is_no_error(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`app.control.ping` deletes its queue for replies, which goes with its consumer as well."""
    channel.queue_declare("replies", auto_delete=True)
    fresh = channel._fresh

    def gone(name: str) -> mirrorq.MirroredQueue:
        """As it was found, and then deleted by somebody else."""
        handle = fresh(name)
        channel.connection.mirrorq.queue(name, passive=True).delete()
        until(lambda: handle._handle.is_closed)
        return handle

    monkeypatch.setattr(channel, "_fresh", gone)
    assert channel.queue_delete("replies") == 0


def test_a_get_waits_for_its_node(tmp_path: Path) -> None:
    """While its node is away nobody knows whether there is a message: it is waited for, and that
    time is bounded."""
    place = {"path": tmp_path / "a", "listen": free_endpoint()}
    url = place["listen"].replace("tcp", "mirrorq") + "//"
    with mirrorq.Node("a", **place) as node:
        node.wait_ready(DEADLINE_S)
        patient, hasty = kombu.Connection(url), kombu.Connection(url)
        channels = [connection.channel() for connection in (patient, hasty)]
        channels[0].queue_declare("q", durable=True, auto_delete=False)
        put(channels[0], "q", "first", "second")
        for channel in channels:
            assert channel.basic_get("q", no_ack=True) is not None
        put(channels[0], "q", "third")
    hasty.connection.confirm_timeout = 0
    for connection in (patient, hasty):
        until(lambda client=connection.connection.mirrorq: client.is_paused)
    with pytest.raises(mirrorq.NoQuorum):
        channels[1].basic_get("q")
    found: list[Any] = []
    getting = threading.Thread(target=lambda: found.append(channels[0].basic_get("q")))
    getting.start()
    with mirrorq.Node("a", **place):
        getting.join(DEADLINE_S)
        assert found[0] is not None
        assert found[0].message.body == b"third"
        patient.release()
        hasty.release()


# --- Arguments of queues --------------------------------------------------------------------

ARGUMENTS = {
    "x-expires": 60_000,
    "x-message-ttl": 1_500,
    "x-max-length": 10,
    "x-max-length-bytes": 1_000,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
    "x-dead-letter-strategy": "at-least-once",
    "x-delivery-limit": 3,
    "x-consumer-timeout": 2_000,
    "x-max-priority": 10,
    "x-queue-type": "quorum",
    "x-single-active-consumer": False,
}


def test_arguments_of_a_declaration_are_the_queues(node: mirrorq.Node, channel: Any) -> None:
    """Each is kept as mirrorq's own of that meaning; declared again it is found, with another value
    what differs is named."""
    channel.queue_declare("q", durable=True, auto_delete=False, arguments=ARGUMENTS)
    assert node.queue("q", passive=True).status().arguments == {
        "expires": 60_000,
        "message-ttl": 1_500,
        "max-length": 10,
        "max-length-bytes": 1_000,
        "overflow": "reject-publish",
        "dead-letter-queue": "dead",
        "delivery-limit": 3,
        "consumer-timeout": 2_000,
    }
    channel.queue_declare("q", durable=True, auto_delete=False, arguments=ARGUMENTS)
    other = ARGUMENTS | {"x-max-length": 11}
    with pytest.raises(amqp.PreconditionFailed, match="max-length"):
        channel.queue_declare("q", durable=True, auto_delete=False, arguments=other)


def test_what_was_declared_happens(node: mirrorq.Node, channel: Any) -> None:
    """A queue that is full drops its oldest, as RabbitMQ's does when nothing else is said, and what
    is dropped or rejected is in the dead-letter queue."""
    channel.queue_declare("dead", durable=True, auto_delete=False)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    bounded = {"x-max-length": 2, **letters}
    channel.queue_declare("q", durable=True, auto_delete=False, arguments=bounded)
    put(channel, "q", "1", "2", "3")
    dead = Sink(channel, "dead")
    assert dead.wait(1) == ["1"]
    sink = Sink(channel, "q")
    assert sink.wait(2) == ["2", "3"]
    sink.messages[0].reject()
    assert dead.wait(2) == ["1", "2"]


def test_kombus_own_names_of_them(node: mirrorq.Node, connecting: Connecting) -> None:
    """As Celery's `rpc://` and its control queues declare theirs, in seconds."""
    queue = kombu.Queue("q", expires=60, message_ttl=1.5, max_length=3, max_priority=9)
    queue(connecting()).declare()
    assert node.queue("q", passive=True).status().arguments == {
        "expires": 60_000,
        "max-length": 3,
        "message-ttl": 1_500,
        "overflow": "drop-head",
    }


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-dead-letter-exchange": "dlx"}, "dead letters to a queue"),
        ({"x-dead-letter-exchange": ""}, "dead letters to a queue"),
        ({"x-dead-letter-routing-key": "dead"}, "dead letters to a queue"),
        ({"x-overflow": "reject-publish-dlx"}, "drop-head and reject-publish"),
        ({"x-queue-type": "stream"}, "classic or quorum"),
        ({"x-single-active-consumer": True}, "single-active-consumer"),
        ({"x-max-priority": 256}, "0 to 255"),
        ({"x-max-length": "many"}, "x-max-length='many'"),
        ({"x-message-ttl": 1.5}, "whole number"),
        ({"x-expires": 0}, "expires"),
        ({"x-max-length": -1}, "max-length"),
    ],
)
def test_what_cannot_be_had_is_refused(channel: Any, arguments: dict[str, Any], why: str) -> None:
    """Where messages would fare otherwise than was asked for, and the queue is not made."""
    with pytest.raises(amqp.PreconditionFailed, match=why):
        channel.queue_declare("q", arguments=arguments)
    with pytest.raises(amqp.NotFound):
        channel.queue_declare("q", passive=True)


def test_what_is_left_out_is_told_once(
    channel: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where copies are is a policy's to say, and what nobody knows is left out, as in RabbitMQ."""
    monkeypatch.setattr(told, "_told", set())
    for name in ("q1", "q2"):
        channel.queue_declare(name, arguments={"x-queue-mode": "lazy", "x-of-nobody": 1})
    text = caplog.text
    assert text.count("x-queue-mode, which is left out: messages wait on disk anyway") == 1
    assert text.count("x-of-nobody, which is left out: mirrorq does not know it") == 1
