"""Rules of `force-boot` that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.cluster import force_boot


@instead("survivor goes on in the old past", force_boot, "_view_of")
def _old_past(real: Real, view: Any, me: Any) -> Any:
    """Each queue as after a clean promotion, in the next epoch."""
    epoch = view.epoch + 1
    kept = {"how": "clean", "generation": view.generation}
    return replace(real(view, me), epoch=epoch, master_epoch=epoch, **kept)


@instead("survivor keeps the old voters", force_boot.RecoveredState, "inherited")
def _old_voters(real: Real, self: Any, copies: Any, store: int, cluster: int) -> Any:
    write: Any = real(self, copies, store, cluster)
    others = tuple(voter for voter in self.voters if voter.node != self.node.name)
    voters = tuple(sorted((*write.snapshot.voters, *others)))
    return replace(write, snapshot=replace(write.snapshot, voters=voters))
