"""Consensus on the catalog: Raft as a pure machine. See `core` for what it guarantees.

`messages` what goes in, comes out and travels; `log` the log in memory and what of it is on
disk; `progress` and `replication` a leader's view of the others; `election_timer`
when to stand for election; `core` the machine itself.
"""
