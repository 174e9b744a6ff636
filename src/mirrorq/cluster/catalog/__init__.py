"""The replicated metadata: nodes, queues and each queue's view, as one state machine. Pure.

Raft gives every node the same commands in the same order. `Catalog.apply` turns each command into
the same new state and the same result everywhere. The catalog reads no clock and makes no choice.
The leader's `controller` decides which commands to propose. The catalog decides whether a change
still fits when its turn comes.

Guarantees
    1. A view changes by compare-and-set on its epoch, and each change adds exactly 1: of two
       proposals for the same epoch the second fails (R12).
    2. A new master was in sync in the replaced view (R5): by (node, store), or in the very
       incarnation where the view is not `fsync`. An `unclean` change makes another member
       master, alone in sync, and only where the policy in force allows the loss.
    3. Incarnations of a store only grow, and a queue id is never used again.
    4. Equal histories of commands give equal `snapshot()` bytes.
    5. A request of a node takes effect once, however often the log holds it (`deduplication`).

The catalog does not judge which nodes live, and does not know the proposer of a command. The leader
checks before a command enters the log: only the master counts a joining member in.
"""
