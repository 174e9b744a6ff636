"""The replicated metadata: nodes, queues and each queue's view, as one state machine. Pure.

Raft gives every node the same commands in the same order; `Catalog.apply` turns each into
the same new state and the same result everywhere. It reads no clock and makes no choice:
what to propose is for the leader's `controller`, whether a change is still right when its
turn comes is decided here.

Guarantees
    1. A view changes by compare-and-set on its epoch, and each change adds exactly 1: of two
       proposals that name the same epoch one fails (R12).
    2. A new master was in sync in the view that it replaces (R5): by (node, store), or in the
       very incarnation where that view is not `fsync`. An `unclean` change makes another member
       of it master, alone in sync, and only where the policy in force allows that.
    3. Incarnations of a store only grow, and a queue id is never used again.
    4. Equal histories of commands give equal `snapshot()` bytes.
    5. A request of a node takes effect once, however often it stands in the log (`deduplication`).

It does not judge who is alive, and it does not know who proposed a command: that only the
master counts a joiner in is checked by the leader before the command enters the log.
"""
