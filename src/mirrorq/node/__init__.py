"""One node as a process: its thread, its files, its sockets.

`node.Node` is what users open. Its `driver` owns store, transport and the node thread: it drains
what has arrived, steps the `engine`, makes one commit, and carries the effects out in their order.
`gateway` serves the processes that are no nodes.

May import: every room but the faces (aio, cli, demo, testing). Begin with `driver`, `_round`.
"""
