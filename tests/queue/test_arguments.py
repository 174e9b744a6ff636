"""What is wrong with a call is told at the call, by name and value, and nothing else happens: the
node, the client and all other handles on them go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mirrorq
from mirrorq import ConfigError, QueueNotFound

pytestmark = pytest.mark.real

DEADLINE_S = 60
HUGE = 2**70
HALF = "\ud800"
"""Half of a surrogate pair: a str that cannot be written."""

Calls = dict[str, tuple[type[Exception], Callable[[Any], object]]]
"""Words of the message -> the exception, and a call."""

OF_A_QUEUE: Calls = {
    "start is 'x'": (TypeError, lambda q: q.browse("x")),
    f"start is {HUGE}": (ValueError, lambda q: q.browse(HUGE)),
    "start is -5": (ValueError, lambda q: q.browse(-5)),
    "count_max is 2.5": (TypeError, lambda q: q.browse(1, 2.5)),
    "count_max is '3'": (TypeError, lambda q: q.get_many("3")),
    "count_max is -1": (ValueError, lambda q: q.lease(-1)),
    "a label is a string, not 4": (ConfigError, lambda q: q.claim(label=4)),
    "first is 'a'": (TypeError, lambda q: q.read("a", 3)),
    "first is -1": (ValueError, lambda q: q.live_ranges(-1, 3)),
    "timestamp is nan": (ValueError, lambda q: q.sequence_at(float("nan"))),
    "callback is None": (TypeError, lambda q: q.consume(None)),
    "on_cancel is 3": (TypeError, lambda q: q.consume(print, on_cancel=3)),
    "prefetch is 2.5": (ConfigError, lambda q: q.consume(print, prefetch=2.5)),
    f"prefetch is {HUGE}": (ConfigError, lambda q: q.consume(print, prefetch=HUGE)),
    "['a'] is not what get()": (TypeError, lambda q: q.ack_many(["a"])),
    "'m' is not what get()": (TypeError, lambda q: q.transaction().__enter__().ack("m")),
    "the transaction has not begun": (ValueError, lambda q: q.transaction().put(b"x")),
    "block is 5: it must be": (TypeError, lambda q: q.put(b"x", 5)),
    "block is 'no'": (TypeError, lambda q: q.put_many([b"x"], "no")),
    "persistent is 'no'": (TypeError, lambda q: q.put(b"x", persistent="no")),
    "auto_ack is 'no'": (TypeError, lambda q: q.get(auto_ack="no")),
    "auto_ack is 0": (TypeError, lambda q: q.consume(print, auto_ack=0)),
    "exclusive is 'no'": (TypeError, lambda q: q.consume(print, exclusive="no")),
    "cancel_on_failover is 1": (TypeError, lambda q: q.consume(print, cancel_on_failover=1)),
    "a key is a str or bytes, not int": (TypeError, lambda q: q.put(b"x", key=4)),
    "on_confirm is 5": (TypeError, lambda q: q.put(b"x", on_confirm=5)),
    "on_confirm is 'f'": (TypeError, lambda q: q.put_many([b"x"], on_confirm="f")),
    "the timeout is 'soon'": (TypeError, lambda q: q.put(b"x", timeout="soon")),
    "the timeout is nan": (ValueError, lambda q: q.get(timeout=float("nan"))),
    "the timeout is '1'": (TypeError, lambda q: q.get_many(1, "1")),
    "headers is of type list": (TypeError, lambda q: q.put(b"x", headers=["a"])),
    "cannot be written as UTF-8": (ConfigError, lambda q: q.put(b"x", message_id=HALF)),
    "no queue is named 'nobody': declare it first": (
        QueueNotFound,
        lambda q: q._handle.id_of("nobody"),
    ),
}
OF_A_HOST: Calls = {
    "durable is True or False, not 'no'": (
        ConfigError,
        lambda host: host.queue("r", durable="no"),
    ),
    "queue 'r' cannot be its own dead-letter queue": (
        ConfigError,
        lambda host: host.queue("r", dead_letter_queue="r"),
    ),
    "max-length is a whole number from 1": (
        ConfigError,
        lambda host: host.queue("r", max_length=0),
    ),
    "passive is True or False, not 1": (ConfigError, lambda host: host.queue("r", passive=1)),
    "this cannot be asked": (ConfigError, lambda host: host.clear_policy(HALF)),
    "TransferMaster": (ConfigError, lambda host: host.transfer_master(HALF, "a")),
    "RemoveNode": (ConfigError, lambda host: host.forget_node(HALF)),
    "a client's name": (ConfigError, lambda host: host.disconnect(HALF)),
    "a reason is a string, not 4": (ConfigError, lambda host: host.disconnect("x", 4)),
    "on_confirm is 7": (
        TypeError,
        lambda host: host.exchange("e", "topic").publish("a", b"x", on_confirm=7),
    ),
    "Bind": (ConfigError, lambda host: host.exchange("e", "topic").bind("q", HALF)),
    "an exchange's name": (ConfigError, lambda host: host.exchange(HALF, passive=True)),
    "a transaction is a string": (ConfigError, lambda host: host.staged(4, 1, "q")),
    "a version is a whole number": (ConfigError, lambda host: host.staged("t", "x", "q")),
    "on_event is 3": (TypeError, lambda host: host.add_listener(3)),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mirrorq.Node]:
    path = tmp_path_factory.mktemp("arguments")
    with mirrorq.Node("a", path=path, listen="tcp://127.0.0.1:*") as node:
        node.wait_ready(DEADLINE_S)
        yield node


@pytest.fixture(scope="module", params=["node", "client"])
def host(node: mirrorq.Node, request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "node":
        yield node
        return
    with mirrorq.connect(node.listening) as client:
        yield client


@pytest.mark.parametrize("words", [*OF_A_QUEUE, *OF_A_HOST])
def test_a_wrong_argument_is_told_and_ends_nothing(host: Any, words: str) -> None:
    """Some of these ended the node thread, and with it every queue on the node."""
    with host.queue("q") as queue:
        kind, call = (OF_A_QUEUE | OF_A_HOST)[words]
        with pytest.raises(kind) as raised:
            call(queue if words in OF_A_QUEUE else host)
        assert words in str(raised.value)
        queue.put(b"goes on").result(DEADLINE_S)
        with queue.get(timeout=DEADLINE_S) as message:
            assert message.body == b"goes on"


def test_a_flag_of_a_message_is_no_text(host: Any) -> None:
    """`nack("no")` would have given it back."""
    with host.queue("q") as queue:
        queue.put(b"x").result(DEADLINE_S)
        with queue.get(timeout=DEADLINE_S) as message:
            for call in (message.nack, message.reject):
                with pytest.raises(TypeError, match="requeue is 'no': it must be True or False"):
                    call("no")


def test_what_lies_beyond_the_queue_is_read(host: Any) -> None:
    """No mistake: "to the end" may be said with any number."""
    with host.queue("far") as queue:
        queue.put(b"one").result(DEADLINE_S)
        (batch,) = queue.read(0, HUGE)
        assert batch.bodies() == [b"one"]
        assert queue.live_ranges(1, HUGE) == [(batch.first, batch.last)]
        assert queue.sequence_at(float("inf")) == batch.last + 1
        assert queue.browse(count_max=0) == []
        queue.purge()


def test_the_prefetch_of_a_running_consumer(host: Any) -> None:
    with host.queue("q") as queue:
        consumer = queue.consume(lambda message: message.ack(), prefetch=2)
        for value in (-1, False, 2.5, "3", HUGE):
            with pytest.raises(ConfigError, match="prefetch is"):
                consumer.prefetch = value
        assert consumer.prefetch == 2
        consumer.cancel()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prefetch": 0}, "prefetch is 0: it must be a whole number from 1 up, 256 by default"),
        ({"prefetch": "3"}, "prefetch is '3': it must be a whole number"),
        ({"failure_ms": True}, "failure_ms is True: it must be a whole number"),
        ({"store_bytes_max": HUGE}, f"store_bytes_max is {HUGE}"),
    ],
)
def test_a_wrong_setting(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mirrorq.Config(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": 3}, "a node's name is a string, not 3"),
        ({"peers": ["a"]}, "peers is .*: it must be a mapping of each node's name to its endpoint"),
        ({"name": "a=b"}, "a node's name is 'a=b': it must not contain ="),
        ({"peers": {"a": "ipc:///a", "b=": "ipc:///b"}}, "a peer's name is 'b='"),
        ({"peers": {"a": 7400}}, "the endpoint of peer 'a' is a string, not 7400"),
        ({"config": {"prefetch": 3}}, "config is .*: give a mirrorq.Config"),
    ],
)
def test_a_node_that_cannot_be(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    path = tmp_path / "a"
    with pytest.raises(ConfigError, match=words):
        mirrorq.Node(**{"name": "a", "path": path, **given})
    assert not path.exists()


def test_endpoints_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.environ.get()` of a variable that is not set: there is no MIRRORQ_URL either."""
    monkeypatch.delenv("MIRRORQ_URL", raising=False)
    with pytest.raises(ConfigError, match="no endpoints: name some, or a URL in MIRRORQ_URL"):
        mirrorq.connect(None)


def test_endpoints_as_the_peers_of_a_node(node: mirrorq.Node) -> None:
    with mirrorq.connect({"a": node.listening}) as client:
        assert [found.name for found in client.nodes()] == ["a"]
    with pytest.raises(ConfigError, match="'nowhere' is malformed"):
        mirrorq.connect({"a": "nowhere"})


def test_the_status_of_what_is_closed_or_deleted_has_its_name(host: Any) -> None:
    queue = host.queue("short-lived")
    queue.delete()
    assert queue._handle.ended.wait(DEADLINE_S)
    status = queue.status()
    assert (status.name, status.state) == ("short-lived", "down")
    assert status.warnings == ("the queue was deleted",)
