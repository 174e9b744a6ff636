"""Spans of what goes through queues: one trace from who puts to who works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.instrumentation")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from tests.kit import DEADLINE_S, until

import mirrorq
from mirrorq import aio
from mirrorq.contrib.opentelemetry import MirrorQInstrumentor, context_of


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What was told, of a tracer that all of mirrorq uses meanwhile."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = MirrorQInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()


def by_name(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in spans.get_finished_spans()}


def processed(spans: InMemorySpanExporter) -> list[Any]:
    """Those of callbacks that have ended."""
    return [one for one in spans.get_finished_spans() if one.name == "process orders"]


@pytest.mark.parametrize("shards", [None, 2])
def test_a_trace_goes_through_a_queue(
    spans: InMemorySpanExporter, node: mirrorq.Node, shards: int | None
) -> None:
    """Put by a client, worked on at a node: one trace, parent and child; the callback's own spans
    are below it; and an exception is told."""
    told = threading.Event()
    seen: list[Any] = []

    def work(message: mirrorq.Message) -> None:
        seen.append(trace.get_current_span().get_span_context())
        told.set()
        if len(seen) == 1:
            raise ValueError("no tea")

    with mirrorq.connect(node.listening, timeout=DEADLINE_S) as client:
        queue = client.queue("orders", shards=shards)
        queue.put(b"tea", headers={"table": 7}, message_id="m1").result(DEADLINE_S)
        consumer = node.queue("orders").consume(work)
        assert told.wait(DEADLINE_S)
        until(lambda: len(processed(spans)) == 2)  # It comes again.
        consumer.cancel()
    sent = by_name(spans)["send orders"]
    first, again = processed(spans)
    assert sent.kind is trace.SpanKind.PRODUCER
    assert first.kind is trace.SpanKind.CONSUMER
    assert first.context == seen[0]
    assert {first.parent.span_id, again.parent.span_id} == {sent.context.span_id}
    assert first.context.trace_id == again.context.trace_id == sent.context.trace_id
    assert first.status.status_code is trace.StatusCode.ERROR
    assert dict(sent.attributes) == {
        "messaging.system": "mirrorq",
        "messaging.operation.name": "put",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
    }
    assert again.attributes["messaging.message.id"] == "m1"
    assert again.attributes["mirrorq.message.redelivered"] is True


def test_a_get_links_to_who_sent(spans: InMemorySpanExporter, node: mirrorq.Node) -> None:
    """Also of several at once, and from asyncio; a span of one's own can be the child."""
    queue = node.queue("orders")

    async def put() -> None:
        async with aio.connect(node.listening) as client, client.queue("orders") as there:
            await there.put(b"tea")

    asyncio.run(put())
    queue.put_many([b"milk", b"sugar"]).result(DEADLINE_S)
    message = queue.get(timeout=DEADLINE_S)
    rest = [queue.get(timeout=DEADLINE_S), *queue.get_many(5, DEADLINE_S)]
    sent = sends(spans)
    gets = [one for one in spans.get_finished_spans() if one.name == "receive orders"]
    assert [one.links[0].context.span_id for one in gets] == [
        sent[0].context.span_id,
        sent[1].context.span_id,
        sent[1].context.span_id,
    ]
    assert sent[1].attributes["messaging.batch.message_count"] == 2
    assert gets[2].attributes["messaging.batch.message_count"] == len(rest) - 1 == 1
    context = trace.get_current_span(context_of(message)).get_span_context()
    assert context.span_id == sent[0].context.span_id


def test_bodies_are_given_in_every_way(spans: InMemorySpanExporter, node: mirrorq.Node) -> None:
    """By name, and by a generator, whose length nobody knows before."""
    queue = node.queue("orders")
    queue.put(body=b"1").result(DEADLINE_S)
    queue.put_many(bodies=[b"2", b"3"]).result(DEADLINE_S)
    queue.put_many(body for body in [b"4"]).result(DEADLINE_S)  # type: ignore[arg-type]

    async def put() -> None:
        async with aio.connect(node.listening) as client, client.queue("orders") as there:
            await there.put(body=b"5")
            await there.put_many(bodies=(body for body in [b"6"]))  # type: ignore[arg-type]

    asyncio.run(put())
    counts = [span.attributes.get("messaging.batch.message_count") for span in sends(spans)]
    assert counts == [None, 2, None, None, None]
    assert queue.qsize() == 6


def test_consumers_of_asyncio_tell_the_same(
    spans: InMemorySpanExporter, node: mirrorq.Node
) -> None:
    """A callback is a child of who sent, and a message of `async for` a link to it."""
    seen: list[Any] = []

    async def main() -> None:
        async with aio.connect(node.listening) as client, client.queue("orders") as queue:
            await queue.put(b"tea")
            done = asyncio.Event()

            async def work(message: mirrorq.Message) -> None:
                await asyncio.sleep(0)
                seen.append(trace.get_current_span().get_span_context())
                done.set()

            async with await queue.consume(work):
                await asyncio.wait_for(done.wait(), DEADLINE_S)
            await queue.put(b"milk")
            async for message in queue:
                message.ack()
                break

    asyncio.run(main())
    (done,), (tea, milk) = processed(spans), sends(spans)
    assert done.context == seen[0]
    assert done.parent.span_id == tea.context.span_id
    got = by_name(spans)["receive orders"]
    assert got.links[0].context.span_id == milk.context.span_id


def test_a_trace_goes_through_a_spool(spans: InMemorySpanExporter, node: mirrorq.Node) -> None:
    """One span for a put, none for the spool's own records, and the message carries it."""
    with node.queue("orders", spool=True) as spooled:
        spooled.put(b"tea").result(DEADLINE_S)

    async def put() -> None:
        there = aio.SpooledQueue(node.queue("orders", spool=True))
        await (await there.put(b"milk"))
        await (await there.send(b"sugar"))

    asyncio.run(put())
    told = sends(spans)
    assert {span.name for span in spans.get_finished_spans()} == {"send orders"}
    messages = [node.queue("orders").get(timeout=DEADLINE_S) for _ in range(3)]
    carried = [trace.get_current_span(context_of(one)).get_span_context() for one in messages]
    assert [each.span_id for each in carried] == [span.context.span_id for span in told]


def sends(spans: InMemorySpanExporter) -> list[Any]:
    return [one for one in spans.get_finished_spans() if one.name == "send orders"]


def test_what_was_not_sent_is_no_span(spans: InMemorySpanExporter, node: mirrorq.Node) -> None:
    """A put that is refused is told as an error; what a message without a trace has is nothing;
    and after uninstrument nothing is told."""
    queue = node.queue("orders")
    with pytest.raises(TypeError):
        queue.put(7)  # type: ignore[arg-type]
    (failed,) = spans.get_finished_spans()
    assert failed.status.status_code is trace.StatusCode.ERROR
    MirrorQInstrumentor().uninstrument()
    spans.clear()
    queue.put(b"plain").result(DEADLINE_S)
    message = queue.get(timeout=DEADLINE_S)
    assert not trace.get_current_span(context_of(message)).get_span_context().is_valid
    assert spans.get_finished_spans() == ()


@pytest.mark.usefixtures("spans")
def test_a_callback_is_checked_as_without_spans(node: mirrorq.Node) -> None:
    """A message of a wrong one would fail for ever."""

    async def work(message: mirrorq.Message) -> None: ...

    async def give(message: mirrorq.Message) -> AsyncIterator[None]:
        yield

    queue = node.queue("orders")
    for wrong in (work, give, None, 5):
        with pytest.raises(TypeError):
            queue.consume(wrong)  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(TypeError, match="leave yield out"):
            await aio.MirroredQueue(queue).consume(give)  # type: ignore[arg-type]

    asyncio.run(main())
