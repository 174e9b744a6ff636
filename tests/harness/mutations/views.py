"""Rules of views that are left out: who may become master, and of what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, answer, instead, named
from mirrorq.cluster.catalog import catalog, view_changes
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.controller import node_states
from mirrorq.protocol import views
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View

answer("promotion of one not in sync", catalog, "promotion_error", "")


answer("unclean promotion although when-synced", Catalog, "may_lose", True)


@named("wiped store taken for the old member")
def _wiped_store() -> Sequence[Patch]:
    def find_store(found: View, node: str, store: int) -> Any:
        return next((one for one in found.members if one.id.node == node), None)

    return [(view_changes, "find_store", find_store), (catalog, "find_store", find_store)]


@instead("proposal without compare-and-set", Catalog, "_on_change_view")
def _no_compare(real: Real, self: Catalog, command: Any) -> Any:
    known = self.queue(command.queue_id)
    if known is not None:
        command = replace(command, replaces=known.view.epoch)
    return real(self, command)


@named("restarted master acts in its old epoch")
def _old_incarnation() -> Sequence[Patch]:
    def place_of(found: View, member_id: MemberId) -> int | None:
        for place, member in enumerate(found.members):
            if (member.id.node, member.id.store) == (member_id.node, member_id.store):
                return place
        return None

    def is_master(found: View, member_id: MemberId) -> bool:
        return place_of(found, member_id) == 0

    return [(views, "index", place_of), (views, "is_master", is_master)]


@named("restarted replicated member counted as in sync")
def _lives_do_not_count() -> Sequence[Patch]:
    def counts_incarnations(found: View) -> bool:
        return False

    return [
        (module, "counts_incarnations", counts_incarnations)
        for module in (view_changes, node_states)
    ]
