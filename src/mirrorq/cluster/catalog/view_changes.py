"""Checks of a proposed view, and the resulting view. Pure functions."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from mirrorq.cluster.catalog.records import QueueRecord, is_on
from mirrorq.protocol.commands import ChangeView
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.views import (
    View,
    counts_incarnations,
    find_store,
    is_in_sync,
    next_durability,
)


def changed(view: View, command: ChangeView, wanted: Literal["fsync", "replicated"]) -> View:
    """Return the view which follows from a proposal.

    Args:
        wanted: the durability in the policy in force.
    """
    epoch = view.epoch + 1
    stays = command.members[0].id == view.members[0].id
    # `how` and `master_epoch` stay with the term: a master may learn of its term from a later view
    # in a snapshot, and the first op of the term names `how`.
    how, master_epoch = (view.how, view.master_epoch) if stays else (command.how, epoch)
    generation = view.generation + (command.how == "unclean")
    durability = next_durability(view, wanted, settled=command.settled)
    return View(epoch, command.members, how, master_epoch, generation, durability)


def without(view: View, store: StoreId, wanted: Literal["fsync", "replicated"]) -> View | None:
    """Return the view without a store; None if the view does not have the store."""
    members = tuple(one for one in view.members if not is_on(one.id, store))
    if members == view.members:
        return None
    epoch = view.epoch + 1
    stays = members[0].id == view.members[0].id
    how, master_epoch = (view.how, view.master_epoch) if stays else ("clean", epoch)
    durability = next_durability(view, wanted)
    return replace(
        view,
        epoch=epoch,
        members=members,
        how=how,
        master_epoch=master_epoch,
        durability=durability,
    )


def promotion_error(view: View, command: ChangeView) -> str:
    """R5: only a member in sync in the last committed view may become master."""
    head = command.members[0].id
    if head == view.members[0].id or command.how == "unclean":
        return ""
    before = find_store(view, head.node, head.store)
    if before is None or not before.in_sync:
        return f"{head.node} was not in sync and cannot become master"
    if counts_incarnations(view) and before.id != head:
        return f"{head.node} was restarted, and what it had in memory may be lost"
    if command.how not in ("clean", "cold"):
        return f"a new master needs how=clean or cold, not {command.how!r}"
    return ""


def loss_error(queue: QueueRecord, command: ChangeView, *, may_lose: bool) -> str:
    """Return why an unclean promotion is refused, "" if allowed.

    A restarted member of a queue with `durability: replicated` needs no leave of the policy: by
    choosing the durability the user has accepted the loss of memory.

    Args:
        may_lose: the policy in force allows the loss of messages (`Catalog.may_lose`).
    """
    head, *others = command.members
    before = find_store(queue.view, head.id.node, head.id.store)
    if before is None:
        return f"{head.id.node} has no copy of the queue"
    was_in_sync = before.in_sync and counts_incarnations(queue.view)
    if not was_in_sync and not may_lose:
        return f"{head.id.node} is not in sync, and the policy in force says when-synced"
    if is_in_sync(queue.view, head.id):
        return f"{head.id.node} is in sync: nothing need be lost"
    if any(member.in_sync for member in others):
        return f"nobody is in sync with {head.id.node}, whose copy was not"
    return ""
