"""Store and forward: puts that are accepted on the own disk and confirmed by the cluster later.

A `SpooledQueue` (`queue`) is what a producer holds that has to go on without its cluster. What it
puts is written to a file of its own (`store.spool_file`) and synced: it is *accepted*. One thread
of the `Spool` sends it on, in order, and removes it when the queue has confirmed it: it is
*confirmed* then, as any put is. `line` is the pure half: which numbers a queue's records have, what
may still be dropped, and when their outcomes are final.

A line publishes under a producer id of its own, which it keeps over restarts, and under numbers
that can be worked out anew from what is in the file. So the queue's master knows what it has had,
and takes each message once.

May import: api and what it imports, store. Begin with `line`, then `spool`.
"""
