"""One node's store: queues' logs, checkpoints and the catalog's Raft log, in one LMDB environment.

Guarantees. `Store.commit` is one transaction that is synced when it returns, or one record of a
log that is: all of it is there after a crash, or nothing. A changed byte in a value that mirrorq
wrote is found when the value is read, named in `StoreCorrupt`, and never served. No exception of
LMDB leaves this package.

Not done here. The store does not know what an op means, which messages are live, or what is
stable; it keeps bytes in places (docs/disk-format.md has the layout). It repairs nothing: a
damaged copy is taken anew from another member.

How it works. What one commit brings of a queue is one value, a *run*: frames end to end, at most
about a mebibyte. Publish frames go under the last sequence of their run, so that the run that
holds a sequence is the first one at or after it; other ops go under their last lsn. Nothing in
memory or on disk is per message.

    environment  the LMDB environment: opening, growing, errors, transactions
    pathlock     one process at a time
    records      keys and checksummed values
    runs         frames end to end
    queue_log    what a `QueueWrite` does, and what is read back
    raft_log     the same for a `RaftWrite`
    write_ahead  the log: small commits, before LMDB has them
    log_mark     what LMDB says of it
    node_store   `Store`

Invariants:
1. Runs of one queue do not overlap, and a run's key is its last sequence (last lsn).
2. A queue's entries after its checkpoint have no gap.
3. LMDB has the log's records up to a number that it names, and everything in it came before those
   after.
4. A commit with messages leaves the pages in reserve to those without, so that a full store
   can be drained.

May import: protocol, wire, containers. Begin with `node_store`.
"""
