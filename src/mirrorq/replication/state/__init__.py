"""The applied state of one queue, equal on every copy at the same lsn. Pure.

`queue_state` applies one stable op after another; of it are `priorities`, what is staged
(`staging`) and what is on its way to other queues (`outbox`).

May import: protocol, containers. Begin with `queue_state`, `apply`.
"""
