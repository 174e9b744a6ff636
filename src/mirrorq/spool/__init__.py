"""Store and forward: a local queue accepts puts, the cluster confirms them later.

A `SpooledQueue` (`queue`) is a producer's handle that works without its cluster. A put goes into a
queue of a one-node store on the local disk (`local`): the message is *accepted*. One thread, the
forwarder (`spool`), reads the local queue in order and publishes into the target. When the target
has confirmed a message, the forwarder acks the message locally: the message is *confirmed*, as any
put. `line` is the pure part: the number and the producer id under which a message is sent. So the
target's master takes each message once, after any restart and with any copies of the store.

May import: api and what it imports. Begin with `line`, then `spool`.
"""
