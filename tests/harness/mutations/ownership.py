"""Rules of queues that go with somebody, and are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.engine.hosting import Hosting
from mirrorq.replication.master.auto_delete import AutoDelete


@named("exclusive queue outlives its handle")
def _owner_forgotten() -> Sequence[Patch]:
    def end_owner(self: Hosting, owner: Any) -> None:
        self.sessions.disown(owner)

    def is_ownerless(self: Hosting, record: Any) -> bool:
        return False

    return [(Hosting, "end_owner", end_owner), (Hosting, "_is_ownerless", is_ownerless)]


@named("exclusive queue ends with any handle of its node")
def _any_handle() -> Sequence[Patch]:
    real = Hosting.close_session

    def close_session(self: Hosting, session: Any, queue_id: int) -> None:
        real(self, session, queue_id)
        for record in self.catalog.queues():
            if record.owner is not None and record.owner_incarnation == self.me:
                self.end_owner(record.owner)

    return [(Hosting, "close_session", close_session)]


@named("auto-delete queue goes with one of its consumers")
def _one_goes() -> Sequence[Patch]:
    real = AutoDelete.judge
    most: dict[int, int] = {}

    def judge(self: AutoDelete, now_ms: int, consumers: int) -> Any:
        most[self.queue_id] = max(most.get(self.queue_id, 0), consumers)
        return real(self, now_ms, consumers if consumers == most[self.queue_id] else 0)

    return [(AutoDelete, "judge", judge)]


@named("auto-delete queue forgets that it had a consumer")
def _never_consumed() -> Sequence[Patch]:
    def judge(self: AutoDelete, now_ms: int, consumers: int) -> Any:
        return None

    return [(AutoDelete, "judge", judge)]
