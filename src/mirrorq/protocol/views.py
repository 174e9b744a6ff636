"""The ring of one queue at one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from attrs import frozen
from msgspec import Struct

from mirrorq.protocol.identities import MemberId


@frozen
class Standing:
    """Where one member stands in a view: worked out once an epoch, asked at each step.

    Members stand in the order of joining: `m0` is the master, `m1 … mj` are in sync, joining
    members follow. Ops go right from `m0` to the last member. Watermarks go right from `m0` to
    `mj`, and `mj` closes the ring to `m0`. Each joining member has its own link to `m0` (R1, R2).
    A view without members has no master, and nobody stands in it.
    """

    is_master: bool
    is_member: bool
    in_sync: bool
    left: MemberId | None
    right: MemberId | None
    master: MemberId | None
    last_in_sync: MemberId | None
    is_last_in_sync: bool


NOWHERE = Standing(False, False, False, None, None, None, None, False)
"""Before the first view."""


def standing(view: View, member_id: MemberId) -> Standing:
    """Return the answers for one incarnation."""
    last = last_in_sync(view)
    return Standing(
        is_master(view, member_id),
        find(view, member_id) is not None,
        is_in_sync(view, member_id),
        left(view, member_id),
        right(view, member_id),
        master(view),
        last,
        last == member_id,
    )


def view_text(view: View) -> str:
    """Return a view in words, for the log."""
    master, *mirrors = view.members
    in_sync = ", ".join(member.id.node for member in mirrors if member.in_sync)
    joining = ", ".join(member.id.node for member in mirrors if not member.in_sync)
    text = f"epoch {view.epoch}, master {master.id.node}"
    text += f", in sync {in_sync}" if in_sync else ""
    return text + (f", joining {joining}" if joining else "")


def make_view(
    epoch: int,
    in_sync: Iterable[MemberId],
    joining: Iterable[MemberId] = (),
    how: str = "",
    master_epoch: int = 0,
) -> View:
    """Make a view of members in sync, master first, followed by joining ones."""
    members = tuple(Member(member, True) for member in in_sync)
    members += tuple(Member(member, False) for member in joining)
    return View(epoch, members, how, master_epoch)


def index(view: View, member_id: MemberId) -> int | None:
    """Return the member's place, 0 for the master; None when it is not in the view."""
    for place, member in enumerate(view.members):
        if member.id == member_id:
            return place
    return None


def find(view: View, member_id: MemberId) -> Member | None:
    """Return the member with this very incarnation, or None."""
    place = index(view, member_id)
    return None if place is None else view.members[place]


def find_store(view: View, node: str, store: int) -> Member | None:
    """Return the member that stands on this store, whatever its incarnation, or None."""
    for member in view.members:
        if member.id.node == node and member.id.store == store:
            return member
    return None


def master(view: View) -> MemberId | None:
    """Return the first member, or None of an empty view."""
    return view.members[0].id if view.members else None


def is_master(view: View, member_id: MemberId) -> bool:
    """Say whether this incarnation is the master of the view."""
    return bool(view.members) and view.members[0].id == member_id


def is_in_sync(view: View, member_id: MemberId) -> bool:
    """Say whether this incarnation stands in the view in sync."""
    member = find(view, member_id)
    return member is not None and member.in_sync


def member_ids(view: View) -> tuple[MemberId, ...]:
    """Return all members in order, the master first."""
    return tuple(member.id for member in view.members)


def in_sync_ids(view: View) -> tuple[MemberId, ...]:
    """Return the members in sync in order, the master first."""
    return tuple(member.id for member in view.members if member.in_sync)


def joining_ids(view: View) -> tuple[MemberId, ...]:
    """Return the joining members in order."""
    return tuple(member.id for member in view.members if not member.in_sync)


def last_in_sync(view: View) -> MemberId | None:
    """Return `mj`, which sends the watermark to the master; the master itself when alone."""
    ids = in_sync_ids(view)
    return ids[-1] if ids else None


def left(view: View, member_id: MemberId) -> MemberId | None:
    """Return the member that sends ops to this one; None for the master and for strangers."""
    place = index(view, member_id)
    return view.members[place - 1].id if place else None


def right(view: View, member_id: MemberId) -> MemberId | None:
    """Return the member that gets ops from this one; None for the last and for strangers."""
    place = index(view, member_id)
    if place is None or place + 1 == len(view.members):
        return None
    return view.members[place + 1].id


def links(view: View) -> tuple[tuple[str, str], ...]:
    """Return every pair of nodes that this view needs a working link between, once each.

    Neighbours, the last in sync with the master, and each joining member with the master.
    """
    names = [member.id.node for member in view.members]
    pairs = list(pairwise(names))
    pairs += [(names[0], name) for name in names[max(len(in_sync_ids(view)) - 1, 1) :]]
    return tuple(dict.fromkeys((min(pair), max(pair)) for pair in pairs))


def promotable(view: View) -> tuple[MemberId, ...]:
    """Return who may become master after this view is committed, the first choice first.

    R5: every member in sync, oldest first: each has every stable op on its disk, or in this
    incarnation's memory where `counts_incarnations`. Whether it runs, and in which incarnation, is
    for the asker to judge.
    """
    return in_sync_ids(view)


def counts_incarnations(view: View) -> bool:
    """Say whether members in sync are judged by incarnation: a restarted one has lost what it
    had in memory only. Else by store."""
    return view.durability != "fsync"


def next_durability(
    view: View, wanted: Literal["fsync", "replicated"], *, settled: bool = False
) -> Literal["fsync", "settling", "replicated"]:
    """Return the durability of the view that follows this one, under a policy that says `wanted`.

    To replicated in one step: who is judged more strictly has all that it is to have. Back in
    two: from a settling view only, when its master says that all is on disk.
    """
    if wanted == "replicated":
        return "replicated"
    if view.durability == "fsync" or (view.durability == "settling" and settled):
        return "fsync"
    return "settling"


def order_error(members: tuple[Member, ...]) -> str:
    """Return what is wrong with a view of these members, "" when nothing is.

    A view has a master in sync, members in sync before joining ones, and no node twice.
    """
    if not members:
        return "the view has no members"
    if not members[0].in_sync:
        return f"the master {members[0].id.node} is not in sync"
    flags = [member.in_sync for member in members]
    if sorted(flags, reverse=True) != flags:
        return "a joining member stands before one in sync"
    names = [member.id.node for member in members]
    for place, name in enumerate(names):
        if name in names[:place]:
            return f"node {name} stands in the view twice"
    return ""


# --- Orders that avoid broken links -------------------------------------------------------


def arrange(
    master_id: MemberId,
    mirrors: Sequence[MemberId],
    joining: Sequence[MemberId],
    is_broken: Callable[[str, str], bool],
) -> tuple[tuple[MemberId, ...], tuple[MemberId, ...]]:
    """Order members so that no link that a view needs is broken (R11).

    The given order is kept where it works, else the nearest one in lexical order is taken.
    When none works, mirrors leave the in-sync set one by one, first those that cannot reach
    the master, then those with most broken links, the youngest first. A joining member that
    finds no place is left out.

    Returns:
        (members in sync with the master first, joining members).
    """
    stay = list(mirrors)
    out: list[MemberId] = []
    while (row := _row(master_id, stay, is_broken, closed=True)) is None:
        worst = _worst(master_id, stay, is_broken)
        stay.remove(worst)
        out.append(worst)
    in_sync = (master_id, *row)
    tail: tuple[MemberId, ...] = ()
    waiting = [one for one in (*joining, *out) if not is_broken(one.node, master_id.node)]
    # Twice: one that hears nobody placed so far may hear a later one.
    for one in (*waiting, *waiting):
        if one not in tail:
            longer = _row(in_sync[-1], (*tail, one), is_broken, closed=False)
            tail = tail if longer is None else longer
    return in_sync, tail


def _worst(
    master_id: MemberId, mirrors: Sequence[MemberId], is_broken: Callable[[str, str], bool]
) -> MemberId:
    """Return the mirror to give up first when no order of all of them works."""

    def badness(place: int) -> tuple[bool, int, int]:
        name = mirrors[place].node
        broken = sum(is_broken(name, other.node) for other in mirrors if other.node != name)
        return (is_broken(name, master_id.node), broken, place)

    return mirrors[max(range(len(mirrors)), key=badness)]


def _row(
    first: MemberId,
    rest: Sequence[MemberId],
    is_broken: Callable[[str, str], bool],
    *,
    closed: bool,
) -> tuple[MemberId, ...] | None:
    """Order `rest` to the right of `first` without a broken link; `closed`: as a ring.

    A search in depth, first in the given order. What has failed for (last, still to place)
    is not tried again: at most n x 2^n steps, and one pass when no link is broken.
    """
    failed: set[tuple[MemberId, int]] = set()

    def search(last: MemberId, left_over: int) -> tuple[MemberId, ...] | None:
        if not left_over:
            ends = closed and last != first and is_broken(last.node, first.node)
            return None if ends else ()
        if (last, left_over) in failed:
            return None
        for place, one in enumerate(rest):
            if left_over >> place & 1 and not is_broken(last.node, one.node):
                tail = search(one, left_over & ~(1 << place))
                if tail is not None:
                    return (one, *tail)
        failed.add((last, left_over))
        return None

    return search(first, (1 << len(rest)) - 1)


class Member(Struct, frozen=True, gc=False):
    """An incarnation of a node in a view, and whether it was in sync when the view was made."""

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
    master_epoch: int = 0
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
