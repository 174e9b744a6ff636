"""Deliberate bugs, each one rule left out: does a checker notice?

    with mutation("watermark is received"):
        ...

Each entry of `MUTATIONS` patches the real module for as long as its `with` block lasts. What each
stands for, and what notices it, is in tests/RELIABILITY.md; nothing but the tests switches
one on.
"""

from __future__ import annotations

from harness.mutations import (
    acting,
    clocks,
    columns,
    consumers,
    damage,
    holding,
    joining,
    leases,
    limits,
    moves,
    outbox,
    ownership,
    pages,
    portions,
    producer_pages,
    producers,
    raft,
    rail,
    remains,
    ring,
    several,
    staging,
    star,
    store,
    surviving,
    unique_keys,
    views,
)
from harness.mutations.registry import MUTATIONS, mutation

__all__ = [
    "MUTATIONS",
    "acting",
    "clocks",
    "columns",
    "consumers",
    "damage",
    "holding",
    "joining",
    "leases",
    "limits",
    "moves",
    "mutation",
    "outbox",
    "ownership",
    "pages",
    "portions",
    "producer_pages",
    "producers",
    "raft",
    "rail",
    "remains",
    "ring",
    "several",
    "staging",
    "star",
    "store",
    "surviving",
    "unique_keys",
    "views",
]
