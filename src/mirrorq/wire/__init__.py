"""Bytes: frames (`frames`), the payloads of ops (`ops`) and messages (`messages`).

What is on the wire is what is in the store; docs/disk-format.md has the layouts.

May import: protocol, containers, the C part (`_native`). Begin with `frames`.
"""
