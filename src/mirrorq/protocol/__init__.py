"""The vocabulary of mirrorq: identities, operations, ring, catalog and session messages.

Pure data. Every class is frozen and slotted, so a message can be handed from the
network to any number of machines without a copy. `wire` turns them into bytes; nothing
here knows how.

Words are those of docs/architecture.md: an *op* is one replicated step of a queue, an
*entry* is an op at its place in the log together with the bytes (the *frame*) that carry
it, a *view* is the ring of one queue at one epoch, a *session* is one handle's
conversation with the master of its queue.

Ranges are always pairs (first, last), both inclusive.

May import: containers. Begin with `ops`, then `sessions`.
"""
