"""Rules of queues that go with somebody, and are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, answer, instead, named
from mirrorq.cluster.catalog import declarations
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.engine.hosting import Hosting
from mirrorq.protocol.sessions import Detach, Purge
from mirrorq.replication.master.attachments import Attachments
from mirrorq.replication.master.master import Master


@instead("exclusive queue outlives its handle", Hosting, "end_owner")
def _owner_forgotten(real: Real, self: Hosting, owner: Any) -> None:
    self.sessions.disown(owner)


@instead("exclusive queue outlives its handle", Hosting, "_is_ownerless")
def _owner_forgotten_is_ownerless(real: Real, self: Hosting, record: Any) -> bool:
    return False


@instead("exclusive queue ends with any handle of its node", Hosting, "close_session")
def _any_handle(real: Real, self: Hosting, session: Any, queue_id: int) -> None:
    real(self, session, queue_id)
    for record in self.catalog.queues():
        if record.owner is not None and record.owner_incarnation == self.me:
            self.end_owner(record.owner)


# --- Of one connection ------------------------------------------------------------------------


answer("owner that is silent is gone", Master, "_await_owner", None)


answer("everybody takes from a connection's queue", Master, "_is_foreign", False)


@instead("connection's queue declared by another one", declarations, "_known_error")
def _declared_by_all(real: Real, known: Any, command: Any) -> Any:
    why = real(known, command)
    return "" if "belongs to connection" in why else why


answer("past life of a node keeps its queues", Catalog, "_end_owned", ())


@instead("goodbye of an older attachment ends the present one", Master, "on_request")
def _late_goodbye(real: Real, self: Master, now_ms: int, request: Any) -> None:
    if isinstance(request.request, Detach):
        number = self.attachments.number_of(request.session)
        request = replace(request, attachment=max(number, request.attachment))
    real(self, now_ms, request)


@instead("handle that attaches anew is counted twice", Attachments, "attach")
def _counted_twice(real: Real, self: Attachments, request: Any, body: Any) -> Any:
    is_known = request.session in self
    attachment = real(self, request, body)
    if is_known and attachment is not None:
        self._counts[attachment.connection] += 1
    return attachment


@instead("stranger purges a connection's queue", Master, "_serve")
def _purged_by_all(
    real: Real, self: Master, now_ms: int, session: Any, attachment: Any, body: Any
) -> None:
    if isinstance(body, Purge):
        self.purging.on_purge(now_ms, session, body)
    else:
        real(self, now_ms, session, attachment, body)


@named("consumer seated though its queue goes")
def _seated_at_the_end() -> Sequence[Patch]:
    return [(Master, "_is_ending", False)]


@instead("queue deleted for what a former master saw", Catalog, "_on_delete_queue")
def _past_deletion(real: Real, self: Catalog, command: Any) -> Any:
    return real(self, replace(command, master_epoch=0))
