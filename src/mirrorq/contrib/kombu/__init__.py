"""A transport of kombu, so that Celery runs over mirrorq, without a broker.

kombu has no entry point for transports: importing this module registers the transport, so a Celery
app imports it once, beside its settings::

    import mirrorq.contrib.kombu

    app = Celery("shop", broker="mirrorq://host-a:7400,host-b:7400,host-c:7400//", backend="rpc://")

An app sees AMQP: exchanges, bindings, queues, deliveries that are acked by their tags. Underneath,
queues, exchanges and bindings are mirrorq's own, and

- a publish returns when every reached queue has the message on disk on all its members in
  sync, or raises;
- an ack is a mirrorq ack; unacked messages of a channel come again when the channel closes or its
  process dies;
- a task with an eta waits in its queue, not in a worker.

`docs/celery.md` describes the guarantees after a kill, and differences from AMQP.

    transport    the transport for kombu; the address to connect to
    connection   one client of mirrorq, and state shared by its channels: deliveries on their way
    channel      the methods of an AMQP channel; declarations: methods that make queues and bind,
                 arguments: a queue's x- arguments as mirrorq's
    envelope     a message's properties and headers as one header of mirrorq's
"""

from __future__ import annotations

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise ImportError("mirrorq.contrib.kombu needs kombu: pip install 'mirrorq[celery]'") from error

from mirrorq.contrib.kombu.channel import Channel
from mirrorq.contrib.kombu.connection import Connection
from mirrorq.contrib.kombu.transport import Transport

__all__ = ["Channel", "Connection", "Transport"]

# A name that kombu looks up: the purpose of `import mirrorq.contrib.kombu`.
TRANSPORT_ALIASES["mirrorq"] = "mirrorq.contrib.kombu:Transport"
