import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import mirrorq
from mirrorq.contrib.opentelemetry import MirrorQInstrumentor

provider = TracerProvider()
line = "{0.name} {0.context.trace_id:x}\n".format
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
trace.set_tracer_provider(provider)
MirrorQInstrumentor().instrument()

with mirrorq.MirroredQueue("orders", path="./traced") as orders:
    with trace.get_tracer("shop").start_as_current_span("order"):
        orders.put(b"espresso").result(timeout=30)
    served = threading.Event()
    with orders.consume(lambda message: (message.ack(), served.set())):
        served.wait(timeout=30)
