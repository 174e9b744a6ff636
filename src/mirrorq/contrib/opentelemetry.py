"""Spans of OpenTelemetry for puts and deliveries, by its conventions for messaging.

    from mirrorq.contrib.opentelemetry import MirrorQInstrumentor

    MirrorQInstrumentor().instrument()

- A put is a span `send NAME` (kind producer), and the message carries its context in the header
  `traceparent`; `put_many` is one span for all.
- A message in a consumer's callback is a span `process NAME` (kind consumer), a child of the
  sender's span.
- A message that `get` returns is a span `receive NAME` (kind client) that links to the sender's;
  `context_of(message)` is the sender's context, for a span of one's own.

Transports above (Celery, dramatiq, taskiq) have instrumentors of their own, and need no span here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

import mirrorq
from mirrorq import aio
from mirrorq.spool.local import OWN as SPOOLS_OWN

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
    from opentelemetry.trace import Link, SpanKind
except ImportError as error:
    raise ImportError(
        "mirrorq.contrib.opentelemetry needs OpenTelemetry: pip install 'mirrorq[opentelemetry]'"
    ) from error

__all__ = ["MirrorQInstrumentor", "context_of"]

SYSTEM = "mirrorq"
Wrapped = Callable[..., Any]
Queue = mirrorq.MirroredQueue | mirrorq.SpooledQueue | aio.MirroredQueue | aio.SpooledQueue
Headers = Mapping[str, Any] | None
ASYNC = (iscoroutinefunction, isasyncgenfunction)
"""What `consume` refuses, and a wrapper would hide."""


def context_of(message: mirrorq.Message) -> context.Context:
    """Return the context in which a message was put; an empty context without a header."""
    texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return propagate.extract(texts, context=context.Context())


def _attributes(operation: str, kind: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


def _of_message(message: mirrorq.Message) -> dict[str, Any]:
    told: dict[str, Any] = {
        "messaging.message.body.size": len(message.body),
        "mirrorq.message.sequence": message.sequence,
        "mirrorq.message.redelivered": message.redelivered,
    }
    if message.message_id:
        told["messaging.message.id"] = message.message_id
    return told


def _links(messages: Iterable[mirrorq.Message]) -> list[Link]:
    """Return links to the spans that have sent the messages."""
    contexts = [trace.get_current_span(context_of(one)).get_span_context() for one in messages]
    return [Link(each) for each in contexts if each.is_valid]


class MirrorQInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Makes the spans, from `instrument()` to `uninstrument()`. Arguments of `instrument`:
    `tracer_provider`, else the global provider."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the instrumented package."""
        return ("mirrorq",)

    def _instrument(self, **given: Any) -> None:
        provider = given.get("tracer_provider")
        spans = Spans(trace.get_tracer("mirrorq.contrib.opentelemetry", tracer_provider=provider))
        self._originals: list[tuple[type, str, Wrapped]] = []
        for kind, wrapping, names in (
            (mirrorq.MirroredQueue, spans.sending, ("put", "put_many")),
            (mirrorq.MirroredQueue, spans.receiving, ("get", "get_many")),
            (mirrorq.MirroredQueue, spans.consuming, ("consume",)),
            (mirrorq.SpooledQueue, spans.sending, ("put", "put_many")),
            # `put` and `put_many` of asyncio call `send` and `send_many`.
            (aio.MirroredQueue, spans.sending_aio, ("send", "send_many")),
            (aio.MirroredQueue, spans.receiving_aio, ("get", "get_many")),
            (aio.MirroredQueue, spans.consuming_aio, ("consume",)),
            (aio.SpooledQueue, spans.sending_aio, ("put", "put_many", "send")),
        ):
            for name in names:
                self._replace(kind, name, wrapping)

    def _replace(self, kind: type, name: str, wrapping: Callable[[Wrapped], Wrapped]) -> None:
        original = getattr(kind, name)
        self._originals.append((kind, name, original))
        setattr(kind, name, wraps(original)(wrapping(original)))

    def _uninstrument(self, **_: Any) -> None:
        for kind, name, original in self._originals:
            setattr(kind, name, original)


class Spans:
    """Reports calls as spans, and wraps the reported calls."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def _sent(self, call: str, queue: Queue, bodies: Any, headers: Headers) -> Iterator[Headers]:
        """Make a span, and yield the headers that carry the span's context. A spool's own queues
        get no span: their puts are a part of the put into the spool."""
        if queue.name.startswith(SPOOLS_OWN):
            yield headers
            return
        attributes = _attributes(call, "send", queue.name)
        if call.endswith("_many"):
            with suppress(TypeError):  # a generator has no length
                attributes["messaging.batch.message_count"] = len(bodies)
        with self._tracer.start_as_current_span(
            f"send {queue.name}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            carried = dict(headers or {})
            propagate.inject(carried)
            yield carried

    def _received(self, call: str, queue: Queue, got: Any) -> None:
        """A span when something has come, not for the wait."""
        messages = got if isinstance(got, list) else [got]
        if not messages:
            return
        attributes = _attributes(call, "receive", queue.name)
        if isinstance(got, list):
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _of_message(got)
        name, links = f"receive {queue.name}", _links(messages)
        self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, links=links
        ).end()

    def _processing(self, message: mirrorq.Message) -> AbstractContextManager[Any]:
        """Return a span in the context of the sender."""
        attributes = _attributes("process", "process", message.queue) | _of_message(message)
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"process {message.queue}",
            context=context_of(message),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        return span

    def sending(self, original: Wrapped) -> Wrapped:
        def send(queue: Queue, *given: Any, headers: Headers = None, **named: Any) -> Any:
            bodies = given[0] if given else named.get("bodies")
            with self._sent(original.__name__, queue, bodies, headers) as carried:
                return original(queue, *given, headers=carried, **named)

        return send

    def sending_aio(self, original: Wrapped) -> Wrapped:
        async def send(queue: Queue, *given: Any, headers: Headers = None, **named: Any) -> Any:
            bodies = given[0] if given else named.get("bodies")
            with self._sent(original.__name__, queue, bodies, headers) as carried:
                return await original(queue, *given, headers=carried, **named)

        return send

    def receiving(self, original: Wrapped) -> Wrapped:
        def receive(queue: Queue, *given: Any, **named: Any) -> Any:
            got = original(queue, *given, **named)
            self._received(original.__name__, queue, got)
            return got

        return receive

    def receiving_aio(self, original: Wrapped) -> Wrapped:
        async def receive(queue: Queue, *given: Any, **named: Any) -> Any:
            got = await original(queue, *given, **named)
            self._received(original.__name__, queue, got)
            return got

        return receive

    def consuming(self, original: Wrapped) -> Wrapped:
        def consume(queue: Queue, callback: Wrapped, *given: Any, **named: Any) -> Any:
            if not callable(callback) or any(is_one(callback) for is_one in ASYNC):
                return original(queue, callback, *given, **named)

            def process(message: mirrorq.Message) -> Any:
                with self._processing(message):
                    return callback(message)

            return original(queue, process, *given, **named)

        return consume

    def consuming_aio(self, original: Wrapped) -> Wrapped:
        async def consume(queue: Queue, callback: Wrapped, *given: Any, **named: Any) -> Any:
            if not callable(callback) or isasyncgenfunction(callback):
                return await original(queue, callback, *given, **named)

            async def process(message: mirrorq.Message) -> Any:
                with self._processing(message):
                    return await callback(message)

            return await original(queue, process, *given, **named)

        return consume
