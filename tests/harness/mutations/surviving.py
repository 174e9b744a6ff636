"""Rules of `force-boot` that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.cluster import force_boot


@named("survivor goes on in the old past")
def _old_past() -> Sequence[Patch]:
    """Each queue as after a clean promotion, in the next epoch."""
    real = force_boot._view_of

    def view_of(view: Any, me: Any) -> Any:
        epoch = view.epoch + 1
        kept = {"how": "clean", "generation": view.generation}
        return replace(real(view, me), epoch=epoch, master_epoch=epoch, **kept)

    return [(force_boot, "_view_of", view_of)]


@named("survivor keeps the old voters")
def _old_voters() -> Sequence[Patch]:
    real = force_boot.RecoveredState.inherited

    def inherited(self: Any, copies: Any, store: int, cluster: int) -> Any:
        write: Any = real(self, copies, store, cluster)
        others = tuple(voter for voter in self.voters if voter.node != self.node.name)
        voters = tuple(sorted((*write.snapshot.voters, *others)))
        return replace(write, snapshot=replace(write.snapshot, voters=voters))

    return [(force_boot.RecoveredState, "inherited", inherited)]
