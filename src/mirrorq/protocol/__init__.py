"""The vocabulary of mirrorq: identities, operations, ring, catalog and session messages.

Pure data. Every class is frozen and slotted, so a message can be handed from the network to any
number of machines without a copy. `wire` turns messages into bytes; nothing here knows the bytes.

Words are as in docs/architecture.md. An *op* is one replicated step of a queue. An *entry* is an op
at its place in the log, with the bytes (the *frame*) of the op. A *view* is the ring of one queue
at one epoch. A *session* is one handle's conversation with the master of its queue.

Ranges are always pairs (first, last), both inclusive.

May import: containers. Begin with `ops`, then `sessions`.
"""
