"""One node's whole logic: catalog, leadership, leases and all its queues. Pure.

    effects = engine.step(now_ms, steady_us, events)

The driver (`driver`, or the simulator) drains whatever has arrived, steps it all, makes one
commit of `effects.writes` and `effects.raft`, steps `Committed(effects.round)`, and carries
the other effects out in the order of their fields. Nothing here blocks or raises on what
peers send.

What goes where: ring messages to the queue's `replica`; session requests to the master's
node, wherever that is; Raft and founding messages to `consensus`; what the catalog's leader
decides is in `controller`, which `leadership` asks.

May import: cluster, replication, monitoring, session, protocol, containers. Begin with `core`.
"""
