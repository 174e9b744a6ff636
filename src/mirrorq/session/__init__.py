"""One handle's conversation with the master of its queue. Pure.

    outputs = session.step(now_ms, events)      # arrived events
    …                                           # the handle updates its buffer
    session.complete_attach()                   # `held` is final now
    requests = session.flush(now_ms)            # requests of the events and of the users' calls

A handle lives on one node (or client); the queue's master may be anywhere, and may change. Requests
of a handle belong to an *attachment*: requests and replies are numbered in it. A gap on either
side, a lost link or a new master begins the next attachment. A new attachment tells the master
which messages users hold (`held`). The session then resends everything without an outcome: batches
under the same producer numbers (P4), settlements of the same deliveries. So the session does not
need to know which messages the network lost.

Messages that no call has returned are dropped when an attachment ends: they are not in `held`, no
user saw them, and they go back uncounted (P3).

Outcomes. A batch ends with sequences, with a refusal, or unknown (its producer id expired, or the
handle was closed): never by a time-out here.

Invariants: 1. Numbers of a producer are without gaps and in the order of puts. 2. `batches` holds
exactly the numbers without an outcome, in order. 3. Credit asked for never exceeds demand + window
beyond the buffered messages.

May import: protocol, containers. Begin with `machine`.
"""
