"""The objects that users hold: queues, messages, confirmations, consumers, leases, exchanges.

A `MirroredQueue` (`queue`) is a face over a `handle.Handle`, which owns one `session` machine and
its three parts: puts (`publisher`), messages (`receiver`), acks (`acks`). The parts know their
handle as a `channel`. Users' threads append and wait here (`waits`). The machine is stepped on the
one thread of the handle's `host`, a node or a client. The root of the package chooses the host
(`opening`): no module here knows a node or a socket.

May import: session, protocol, wire, containers, monitoring, security. Begin with `queue`, then
`channel` and `handle`.
"""
