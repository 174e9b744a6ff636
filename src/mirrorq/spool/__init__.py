"""Store and forward: puts that are accepted by a local queue and confirmed by the cluster later.

A `SpooledQueue` (`queue`) is a producer's handle that has to go on without its cluster. A put goes
into a queue of a one-node store on the own disk (`local`): it is *accepted*. One thread, the
forwarder (`spool`), reads the local queue in order, publishes into the target, and acks locally
when that has confirmed: the message is *confirmed* then, as any put is. `line` is the pure part:
which number and which identity a message is sent under, so that the target's master takes it once
whatever restarts, and whatever copies of the store there are.

May import: api and what it imports. Begin with `line`, then `spool`.
"""
