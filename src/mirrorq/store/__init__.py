"""One node's store: queues' logs, checkpoints and the catalog's Raft log, in one LMDB environment.

Guarantees. `Store.commit` is one synced transaction, or one synced record of a log. After a crash
the whole commit is there, or nothing. A changed byte in a stored value is found when the value is
read, named in `StoreCorrupt`, and never served. No exception of LMDB leaves the package.

Not done here. The store does not know the meaning of an op, and does not know live messages or the
stable lsn. The store keeps bytes in places (docs/disk-format.md has the layout) and repairs
nothing: a damaged copy is taken anew from another member.

How the store works. The frames of one queue in one commit are one value, a *run*: frames end to
end, at most about a mebibyte. Publish frames go under the last sequence of their run, so the run
with a given sequence is the first run at or after the sequence. Other ops go under their last lsn.
Nothing in memory or on disk is per message.

    environment  the LMDB environment: opening, growing, errors, transactions
    pathlock     one process at a time
    records      keys and checksummed values
    runs         frames end to end
    queue_log    effects of a `QueueWrite`, and reading back
    raft_log     the same for a `RaftWrite`
    write_ahead  the log: small commits, before LMDB has them
    log_mark     LMDB's marks about the logs
    node_store   `Store`

Invariants:
1. Runs of one queue do not overlap, and a run's key is its last sequence (last lsn).
2. A queue's entries after its checkpoint have no gap.
3. LMDB names the number of the last log record in LMDB. All content of LMDB is older than the
   later records.
4. A commit with messages leaves the reserve pages to commits without messages, so a full store
   can be drained.

May import: protocol, wire, containers. Begin with `node_store`.
"""
