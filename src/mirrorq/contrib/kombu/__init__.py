"""A transport of kombu, so that Celery runs over mirrorq, without a broker.

kombu has no entry point for transports: importing this module registers it, so a Celery app does
that once, beside its settings::

    import mirrorq.contrib.kombu

    app = Celery("shop", broker="mirrorq://host-a:7400,host-b:7400,host-c:7400//", backend="rpc://")

What an app sees is AMQP: exchanges, bindings, queues, deliveries that are acked by their tags.
Underneath, queues, exchanges and bindings are mirrorq's own, and

- a publish returns when every queue that it reaches has the message on disk on all its members in
  sync, or raises;
- an ack is a mirrorq ack; what a channel holds unacked comes again when it closes or its process
  dies;
- a task with an eta waits in its queue, not in a worker.

`docs/celery.md` says what holds when something is killed, and what AMQP has and this has not.

    transport    what kombu asks of a transport; where it connects to
    connection   one client of mirrorq, and what its channels share: deliveries on their way
    channel      the methods of an AMQP channel; declarations: those that make queues and bind,
                 arguments: what a queue's x- arguments are here
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

# A name that kombu looks up: this is what `import mirrorq.contrib.kombu` is for.
TRANSPORT_ALIASES["mirrorq"] = "mirrorq.contrib.kombu:Transport"
