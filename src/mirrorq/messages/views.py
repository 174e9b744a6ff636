"""The ring of one queue at one epoch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mirrorq.messages.identities import MemberId


class Member(Struct, frozen=True, gc=False):
    id: MemberId
    in_sync: bool


class View(Struct, frozen=True, gc=False):
    """The ring of one queue at one epoch: oldest first; members[0] is the master.

    Members in sync stand before joining ones. `how` is said of the change of master that
    made this view: clean, unclean, cold, or "" when the master stayed.
    """

    epoch: int
    members: tuple[Member, ...]
    how: str = ""
    reign: int = 0
    """The epoch in which the present master became master: what sessions and deliveries
    name as their epoch, so that a change of mirrors disturbs no consumer. The catalog sets
    it: this epoch when members[0] changed (or is new), else that of the view before."""
    generation: int = 0
    """How many unclean promotions the queue has had. A master whose log does not have the
    last one begins with it, whatever `how` says: the one that should have may have died."""
    durability: Literal["fsync", "settling", "replicated"] = "fsync"
    """What the members' marks say, and by what members in sync are judged. fsync: on disk, by
    store. replicated: in memory, by incarnation. settling, on the way from replicated to fsync:
    on disk, still by incarnation."""
