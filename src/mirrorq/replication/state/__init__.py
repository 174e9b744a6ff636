"""The applied state of one queue, equal on every copy at the same lsn. Pure.

`queue_state` applies one stable op after another. Parts of the state are `priorities`, staged
messages (`staging`) and messages on their way to other queues (`outbox`).

May import: protocol, containers. Begin with `queue_state`, `apply`.
"""
