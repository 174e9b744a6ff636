"""Consensus on the catalog: Raft as a pure machine. `raft` states the guarantees.

`messages`: events, effects and messages between nodes. `log`: the log in memory, and how much of
the log is on disk. `progress` and `replication`: a leader's view of the other replicas.
`election_timer`: when to stand for election. `raft`: the machine itself.
"""
