"""The whole logic of a node: catalog, leadership, leases and all queues. Pure.

    effects = engine.step(now_ms, steady_us, events)

The driver (`driver`, or the simulator) drains all events that have arrived and steps them together.
It then makes one commit of `effects.writes` and `effects.raft`, and steps
`Committed(effects.round)`. It carries the other effects out in the order of their fields. Nothing
here blocks, and no message of a peer makes a step raise.

Ring messages go to the queue's `replica`, and session requests to the node of the queue's master.
Raft and founding messages go to `consensus`. The decisions of the catalog's leader are in
`controller`, which `leadership` asks.

May import: cluster, replication, monitoring, session, protocol, containers. Begin with `engine`.
"""
