"""Publishing through exchanges: which queues a message reaches, and what says so."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.faces import WAIT_S, Stage, case, got, raised
from mirrorq import ConfigError, Full, NotConfirmed, PreconditionFailed, QueueNotFound, ShutDown


def bodies(queue: Any) -> list[bytes]:
    return [message.body for message in queue.browse()]


def bare(stage: Stage, queue: Any) -> Any:
    """The handle itself, where the face wraps it."""
    return queue.handle if stage.face.name == "sharded" else queue


def test_a_message_reaches_every_queue_bound_to_it(stage: Stage) -> None:
    usd, all_ = stage.queue("usd"), stage.queue("all")
    with stage.exchange("stocks", "topic") as stocks:
        stocks.bind(bare(stage, usd), "stock.usd.*")
        stocks.bind("all", "#")
        assert stocks.bindings() == [("usd", "stock.usd.*", ""), ("all", "#", "")]
        put = stocks.publish("stock.usd.ibm", b"1", headers={"a": 1}, message_id="m")
        assert put.result(WAIT_S) == {"usd": 1, "all": 1}
        put = stocks.publish("stock.usd.ibm", b"2")
        assert put.result(WAIT_S) == {"usd": 2, "all": 2}
        assert list(stocks.publish("stock.eur.db", b"3").result(WAIT_S)) == ["all"]
        assert stocks.wait_for_confirms(WAIT_S)
        message = usd.get(timeout=WAIT_S)
        assert (message.body, message.headers, message.key) == (b"1", {"a": 1}, "stock.usd.ibm")
        assert message.message_id == "m"
        assert sorted(bodies(all_)) == [b"1", b"2", b"3"]
        stocks.unbind(bare(stage, all_), "#")
        assert stocks.publish("stock.eur.db", b"3").result(WAIT_S) == {}


def test_what_reaches_no_queue(stage: Stage) -> None:
    """Goes to the alternate; else nowhere, which is an error where that is asked."""
    stage.queue("rest")
    others = stage.exchange("others", "fanout")
    others.bind("rest")
    direct = stage.exchange("direct", "direct", alternate="others")
    lonely = stage.exchange("lonely", "direct")
    assert direct.publish("k", b"1").result(WAIT_S) == {"rest": 1}
    assert direct.publish("k", b"2", mandatory=True).result(WAIT_S) == {"rest": 2}
    assert lonely.publish("k", b"3").result(WAIT_S) == {}
    with pytest.raises(NotConfirmed, match="reached no queue"):
        lonely.publish("k", b"4", mandatory=True).result(WAIT_S)
    seen: list[object] = []
    lonely.publish("k", b"5", on_confirm=lambda put: seen.append(put.result()))
    stage.until(lambda: seen == [{}])
    others.delete()
    assert direct.publish("k", b"6").result(WAIT_S) == {}


def test_alternates_in_a_circle_end(stage: Stage) -> None:
    with pytest.raises(QueueNotFound, match="no exchange is named 'two': declare it before"):
        stage.exchange("one", "direct", alternate="two")
    stage.exchange("two", "direct").delete()
    two = stage.exchange("two", "direct")
    one = stage.exchange("one", "direct", alternate="two")
    two.delete()
    stage.exchange("two", "direct", alternate="one")
    assert one.publish("k", b"1").result(WAIT_S) == {}


def test_each_queue_looks_at_a_unique_key_by_itself(stage: Stage) -> None:
    """A publish is a duplicate when every queue that it reached repeats."""
    old, late = stage.queue("old"), stage.queue("late")
    with stage.exchange("events", "fanout") as events:
        events.bind("old")
        first = events.publish("k", b"1", unique="order-17")
        assert (first.result(WAIT_S), first.is_duplicate) == ({"old": 1}, False)
        again = events.publish("k", b"1", unique="order-17")
        assert (again.result(WAIT_S), again.is_duplicate) == ({"old": 1}, True)
        events.bind("late")
        stage.until(lambda: len(events.bindings()) == 2)
        third = events.publish("k", b"1", unique="order-17", unique_for=60)
        assert (third.result(WAIT_S), third.is_duplicate) == ({"old": 1, "late": 1}, False)
        other = events.publish("k", b"2", unique="order-18")
        assert sorted(other.result(WAIT_S)) == ["late", "old"]
        assert not other.is_duplicate
    assert [bodies(queue) for queue in (old, late)] == [[b"1", b"2"]] * 2


def test_a_deleted_queue_no_longer_counts(stage: Stage) -> None:
    one = stage.queue("one")
    stage.queue("two")
    events = stage.exchange("events", "fanout")
    events.bind("one")
    events.bind("two")
    assert events.publish("", b"1", priority=3).result(WAIT_S).keys() == {"one", "two"}
    one.delete()
    assert list(events.publish("", b"2").result(WAIT_S)) == ["two"]
    assert events.bindings() == [("two", "", "")]
    assert stage.queue("one").qsize() == 0, "made anew it is not bound"
    assert list(events.publish("", b"3").result(WAIT_S)) == ["two"]


@pytest.mark.parametrize(("headers", "reaches"), [({"a": 1}, True), ({"b": 1}, False)])
def test_headers_lead(stage: Stage, headers: dict[str, int], reaches: bool) -> None:
    stage.queue()
    events = stage.exchange("events", "headers")
    events.bind("orders", arguments={"x-match": "any", "a": 1})
    assert bool(events.publish("", b"1", headers=headers).result(WAIT_S)) == reaches


def test_bad_input_changes_nothing(stage: Stage) -> None:
    stage.queue()
    events = stage.exchange("events", "fanout")
    for name, kind in (("", "fanout"), ("x", "fan"), ("x" * 300, "fanout"), ("x", None)):
        with pytest.raises(ConfigError):
            stage.exchange(name, kind)
    with pytest.raises(ConfigError, match="own alternate"):
        stage.exchange("x", "fanout", alternate="x")
    with pytest.raises(QueueNotFound):
        stage.exchange("x", passive=True)
    with pytest.raises(PreconditionFailed):
        stage.exchange("events", "topic")
    assert stage.exchange("events", passive=True).name == "events"
    with pytest.raises(QueueNotFound):
        events.bind("no such queue")
    with pytest.raises(ConfigError):
        events.bind("orders", "k" * 256)
    with pytest.raises(ConfigError):
        events.bind("orders", arguments={"a": b"x"})
    with pytest.raises(ConfigError):
        events.publish("k" * 256, b"")
    with pytest.raises(TypeError):
        events.publish("k", "text")
    with pytest.raises(TypeError, match="on_confirm is 7"):
        events.publish("k", b"x", on_confirm=7)
    events.bind("orders")
    with pytest.raises(PreconditionFailed):
        events.delete(if_unused=True)
    assert events.bindings() == [("orders", "", "")]
    events.delete()
    stage.until(lambda: isinstance(raised(events.publish, "k", b""), QueueNotFound))
    events.close()
    with pytest.raises(ShutDown):
        events.publish("k", b"")


@case(unconfirmed_count_max=1)
def test_a_publish_that_is_not_accepted_is_in_no_queue(stage: Stage) -> None:
    one, two = stage.queue("one"), stage.queue("two")
    events = stage.exchange("events", "fanout")
    events.bind("one")
    events.bind("two")
    events.publish("k", b"first").result(WAIT_S)
    stage.cluster.fill_disk("a", 1)
    accepted = sum(raised(events.publish, "k", b"x", block=False) is None for _ in range(20))
    assert accepted < 20
    assert isinstance(raised(events.publish, "k", b"y", timeout=0.1), Full)
    assert events.wait_for_confirms(WAIT_S)
    assert one.qsize() == two.qsize() == accepted + 1
    waited = [events.publish("k", b"y", timeout=WAIT_S) for _ in range(20)]
    assert all(len(put.result(WAIT_S)) == 2 for put in waited)


@case(nodes=3)
def test_bindings_that_others_make_are_seen(stage: Stage) -> None:
    stage.queue()
    events = stage.exchange("events", "topic")
    there = stage.cluster.connect("other", to="b").exchange("events", passive=True)
    assert events.publish("a.b", b"0").result(WAIT_S) == {}
    events.bind("orders", "a.*")
    assert list(events.publish("a.b", b"1").result(WAIT_S)) == ["orders"]
    there.bind("orders", "b")
    stage.until(lambda: len(events.bindings()) == 2)
    assert list(events.publish("b", b"2").result(WAIT_S)) == ["orders"]
    there.delete()
    stage.until(lambda: isinstance(raised(events.publish, "b", b"3"), QueueNotFound))


@case(nodes=3)
def test_a_failover_in_the_middle_loses_and_doubles_nothing(stage: Stage) -> None:
    """Queues mastered by two nodes, one of which ends."""
    queues = [stage.queue(name) for name in ("one", "two")]
    stage.cluster.node("b")
    events = stage.exchange("events", "fanout")
    for name in ("one", "two"):
        events.bind(name)
    puts = []
    for number in range(150):
        puts.append(events.publish("k", b"%d" % number))
        if number == 75:
            stage.cluster.crash("a")
    for put in puts:
        assert sorted(put.result(WAIT_S)) == ["one", "two"]
    for queue in queues:
        assert [message.body for message in got(queue, 150)] == [b"%d" % n for n in range(150)]
