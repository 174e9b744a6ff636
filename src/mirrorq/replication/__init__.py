"""One queue on one node: its ring, its applied state, a transfer, and a master's term.

    effects = replica.step(now_ms, steady_us, *events)

Takes all events that have arrived for the queue in one round, and answers with one `ReplicaEffects`
whose field order is the order of execution. It never blocks, reads no clock, and never raises on
remote input.

Order within a step: events, marks of the ring, stable ops (R3), the master's answers and new ops,
marks and frames again, one write.

The applied state reaches the disk as a checkpoint now and then. Later ops are kept and replayed at
start. Message runs are deleted only at a checkpoint, when the state on disk no longer needs them.

May import: protocol, containers, session (a courier publishes as a client does). Begin with
`replica`; `ring` has the proof, `state` the applied state, `master` the master's duties.
"""
