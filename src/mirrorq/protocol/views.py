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
    """A member's place in a view: computed once an epoch, read at each step.

    Members stand in the order of joining: `m0` is the master, `m1 … mj` are in sync, joining
    members follow. Ops go right from `m0` to the last member. Watermarks go right from `m0` to
    `mj`, and `mj` closes the ring to `m0`. Each joining member has its own link to `m0` (R1, R2). A
    view without members has no master and no places.
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
    """Return the place of one incarnation in a view."""
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
    """Make a view of members in sync, master first, then joining members."""
    members = tuple(Member(member, True) for member in in_sync)
    members += tuple(Member(member, False) for member in joining)
    return View(epoch, members, how, master_epoch)


def index(view: View, member_id: MemberId) -> int | None:
    """Return the member's place, 0 for the master; None outside the view."""
    for place, member in enumerate(view.members):
        if member.id == member_id:
            return place
    return None


def find(view: View, member_id: MemberId) -> Member | None:
    """Return the member with the very incarnation, or None."""
    place = index(view, member_id)
    return None if place is None else view.members[place]


def find_store(view: View, node: str, store: int) -> Member | None:
    """Return the member on the store, in any incarnation, or None."""
    for member in view.members:
        if member.id.node == node and member.id.store == store:
            return member
    return None


def master(view: View) -> MemberId | None:
    """Return the first member, or None of an empty view."""
    return view.members[0].id if view.members else None


def is_master(view: View, member_id: MemberId) -> bool:
    """Return true if the incarnation is the master of the view."""
    return bool(view.members) and view.members[0].id == member_id


def is_in_sync(view: View, member_id: MemberId) -> bool:
    """Return true if the incarnation is in the view and in sync."""
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
    """Return the left neighbour, which sends ops; None for the master and for strangers."""
    place = index(view, member_id)
    return view.members[place - 1].id if place else None


def right(view: View, member_id: MemberId) -> MemberId | None:
    """Return the right neighbour, which gets ops; None for the last member and for strangers."""
    place = index(view, member_id)
    if place is None or place + 1 == len(view.members):
        return None
    return view.members[place + 1].id


def links(view: View) -> tuple[tuple[str, str], ...]:
    """Return each pair of nodes with a link needed by the view, once.

    Neighbours, the last member in sync with the master, and each joining member with the master.
    """
    names = [member.id.node for member in view.members]
    pairs = list(pairwise(names))
    pairs += [(names[0], name) for name in names[max(len(in_sync_ids(view)) - 1, 1) :]]
    return tuple(dict.fromkeys((min(pair), max(pair)) for pair in pairs))


def promotable(view: View) -> tuple[MemberId, ...]:
    """Return the members which may become master after the view's commit, first choice first.

    R5: every member in sync, oldest first. Each has every stable op on disk, or in the
    incarnation's memory where `counts_incarnations`. The caller judges which members run, and in
    which incarnation.
    """
    return in_sync_ids(view)


def counts_incarnations(view: View) -> bool:
    """Return true if members in sync count by incarnation, as a restarted member has lost its
    memory. Else members count by store."""
    return view.durability != "fsync"


def next_durability(
    view: View, wanted: Literal["fsync", "replicated"], *, settled: bool = False
) -> Literal["fsync", "settling", "replicated"]:
    """Return the durability of the next view, under a policy with `wanted`.

    To replicated in one step: a stricter judgement needs no further data. Back to fsync in two
    steps: from a settling view only, when its master reports all ops on disk.
    """
    if wanted == "replicated":
        return "replicated"
    if view.durability == "fsync" or (view.durability == "settling" and settled):
        return "fsync"
    return "settling"


def order_error(members: tuple[Member, ...]) -> str:
    """Return the error in a view of the members, "" without an error.

    A view has a master in sync, members in sync before joining members, and no node twice.
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
    """Order members so no link needed by the view is broken (R11).

    The given order is kept if possible, else the nearest order in lexical order is taken. Without a
    working order, mirrors leave the in-sync set one by one: first mirrors without a link to the
    master, then mirrors with most broken links, the youngest first. A joining member without a
    place is left out.

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
    # Twice: a member with broken links to all placed so far may fit after a later member.
    for one in (*waiting, *waiting):
        if one not in tail:
            longer = _row(in_sync[-1], (*tail, one), is_broken, closed=False)
            tail = tail if longer is None else longer
    return in_sync, tail


def _worst(
    master_id: MemberId, mirrors: Sequence[MemberId], is_broken: Callable[[str, str], bool]
) -> MemberId:
    """Return the mirror to give up first when no order of all mirrors works."""

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

    A search in depth, first in the given order. A failed (last, still to place) is not tried again:
    at most n x 2^n steps, and one pass when no link is broken.
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
    """An incarnation of a node in a view, and its sync state at the making of the view."""

    id: MemberId
    in_sync: bool


class View(Struct, frozen=True, gc=False):
    """The ring of one queue at one epoch: oldest first; members[0] is the master.

    Members in sync stand before joining members. `how` tells the change of master with the view:
    clean, unclean, cold, or "" when the master stayed.
    """

    epoch: int
    members: tuple[Member, ...]
    how: str = ""
    master_epoch: int = 0
    """The epoch in which the present master became master: the epoch in sessions and deliveries, so
    a change of mirrors disturbs no consumer. Set by the catalog: the present epoch when members[0]
    changed (or is new), else the value of the earlier view."""
    generation: int = 0
    """Number of unclean promotions of the queue. A master whose log lacks the last promotion begins
    with an unclean promotion, whatever `how` says: the appointed master may have died."""
    durability: Literal["fsync", "settling", "replicated"] = "fsync"
    """Meaning of the members' marks, and judgement of members in sync. fsync: on disk, by store.
    replicated: in memory, by incarnation. settling, on the way from replicated to fsync: on disk,
    still by incarnation."""
