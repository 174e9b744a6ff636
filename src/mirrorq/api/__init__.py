"""What users hold: queues, messages, confirmations, consumers, leases, exchanges.

A `MirroredQueue` (`queue`) is a face over a `handle.Handle`, which owns one `session` machine and
the three ways through it: puts (`publisher`), messages (`receiver`), acks (`acks`). What these know
of their handle is its `channel`. Users' threads append and wait here (`waits`); the machine is
stepped on the one thread of the `host`, a node or a client, that the handle is given. Which of them
is made for whom is told from outside (`opening`): nothing here knows a node or a socket.

May import: session, protocol, wire, containers, monitoring, security. Begin with `queue`, then
`channel` and `handle`.
"""
