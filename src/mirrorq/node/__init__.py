"""One node as a process: its thread, its files, its sockets.

Users open `node.Node`. Its `driver` owns store, transport and the node thread. The driver drains
all input, steps the `engine`, makes one commit, and carries the effects out in their order.
`gateway` serves the processes that are clients.

May import: every room but the faces (aio, cli, demo, testing). Begin with `driver`, `_round`.
"""
