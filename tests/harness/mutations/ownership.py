"""Rules of queues that go with somebody, and are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.cluster.catalog import declarations
from mirrorq.cluster.catalog.core import Catalog
from mirrorq.engine.hosting import Hosting
from mirrorq.protocol.sessions import Detach, Purge
from mirrorq.replication.master.attachments import Attachments
from mirrorq.replication.master.auto_delete import AutoDelete
from mirrorq.replication.master.core import Master


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


# --- Of one connection ------------------------------------------------------------------------


@named("next master does not wait for the owner")
def _owner_unknown() -> Sequence[Patch]:
    real = AutoDelete.lose

    def lose(self: AutoDelete, handle: Any, now_ms: int, wait_ms: int) -> None:
        if handle is not None:
            real(self, handle, now_ms, wait_ms)

    def expect(self: AutoDelete, by_ms: int) -> None:
        pass

    return [(AutoDelete, "lose", lose), (AutoDelete, "expect", expect)]


@named("owner that is silent is gone")
def _silence() -> Sequence[Patch]:
    def await_owner(self: Master, now_ms: int, session: Any, attachment: Any) -> None:
        pass

    return [(Master, "_await_owner", await_owner)]


@named("connection's queue outlives it")
def _owner_for_ever() -> Sequence[Patch]:
    def count_of(self: Attachments, connection: str) -> int:
        return self._counts.get(connection, 1)

    return [(Attachments, "count_of", count_of)]


@named("everybody takes from a connection's queue")
def _open_to_all() -> Sequence[Patch]:
    def is_foreign(self: Master, attachment: Any) -> bool:
        return False

    return [(Master, "_is_foreign", is_foreign)]


@named("connection's queue declared by another one")
def _declared_by_all() -> Sequence[Patch]:
    real = declarations._known_error

    def known_error(known: Any, command: Any) -> str:
        why = real(known, command)
        return "" if "belongs to connection" in why else why

    return [(declarations, "_known_error", known_error)]


@named("past life of a node keeps its queues")
def _past_owner() -> Sequence[Patch]:
    def end_owned(self: Catalog, node: str) -> tuple[int, ...]:
        return ()

    return [(Catalog, "_end_owned", end_owned)]


@named("goodbye of an older attachment ends the present one")
def _late_goodbye() -> Sequence[Patch]:
    real = Master.on_request

    def on_request(self: Master, now_ms: int, request: Any) -> None:
        if isinstance(request.request, Detach):
            number = self.attachments.number_of(request.session)
            request = replace(request, attachment=max(number, request.attachment))
        real(self, now_ms, request)

    return [(Master, "on_request", on_request)]


@named("handle that attaches anew is counted twice")
def _counted_twice() -> Sequence[Patch]:
    real = Attachments.begin

    def begin(self: Attachments, request: Any, body: Any) -> Any:
        is_known = request.session in self
        attachment = real(self, request, body)
        if is_known and attachment is not None:
            self._counts[attachment.connection] += 1
        return attachment

    return [(Attachments, "begin", begin)]


@named("stranger purges a connection's queue")
def _purged_by_all() -> Sequence[Patch]:
    real = Master._serve

    def serve(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        if isinstance(body, Purge):
            self.purging.on_purge(now_ms, session, body)
        else:
            real(self, now_ms, session, attachment, body)

    return [(Master, "_serve", serve)]


@named("consumer seated though its queue goes")
def _seated_at_the_end() -> Sequence[Patch]:
    return [(Master, "_is_ending", False)]


@named("queue deleted for what a former master saw")
def _past_deletion() -> Sequence[Patch]:
    real = Catalog._on_delete_queue

    def on_delete_queue(self: Catalog, command: Any) -> Any:
        return real(self, replace(command, master_epoch=0))

    return [(Catalog, "_on_delete_queue", on_delete_queue)]
