"""One handle's conversation with the master of its queue. Pure.

    outputs = session.step(now_ms, events)      # what arrived
    …                                           # the handle's buffer is brought up to date
    session.complete_attach()                   # `held` is final now
    requests = session.flush(now_ms)            # what that and the users' calls ask for

A handle lives on one node (or client); the queue's master may be anywhere, and may change.
What a handle sends belongs to an *attachment*: requests and replies are numbered in it, and a
gap on either side, a lost link or a new master begins the next one. A new attachment says what
users hold (`held`), and sends again everything that has no outcome yet: batches under the same
producer numbers (P4), settlements of the same deliveries. So nothing here needs to know what
was lost on the way.

What was handed to the handle and not yet returned by a call is dropped when an attachment ends:
it is not in `held`, was seen by nobody, and goes back uncounted (P3).

Outcomes. A batch ends with sequences, with a refusal, or unknown (its producer id expired, or
the handle was closed): never by a time-out here.

Invariants:
1. Numbers of a producer are without gaps and in the order of puts.
2. `batches` holds exactly the numbers without an outcome, in order.
3. Credit asked for never exceeds demand + window beyond what is buffered.

May import: protocol, containers. Begin with `machine`.
"""
