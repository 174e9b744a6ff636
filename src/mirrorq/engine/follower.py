"""The catalog as it is applied on this node, and who is told what has changed in it."""

from __future__ import annotations

from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.cluster.catalog.core import Catalog
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.controller.events import CatalogReplaced
from mirrorq.cluster.raft.messages import KIND_COMMAND
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.context import EngineContext
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.engine.leadership import Leadership
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import DropCopy
from mirrorq.protocol.effects import RaftEntry

COMPACT_ENTRIES = 1000
"""Raft's log is replaced by a snapshot after so many applied entries."""


class Follower:
    """Applies what Raft has agreed on."""

    def __init__(
        self, context: EngineContext, leadership: Leadership, leader_requests: LeaderRequests
    ) -> None:
        self.outdated = ""
        """Why this node has stopped following the catalog, "" as a rule. It still votes and keeps
        entries; it hands out nothing, for its queues' views may have changed."""
        self.applied_max = FOREVER_MS
        """The last entry before the one that it cannot apply."""
        self._context = context
        self._leadership = leadership
        self._leader_requests = leader_requests
        self._since_compact = 0
        """Entries applied since the last snapshot."""

    def apply(self, now_ms: int, entry: RaftEntry) -> bytes | None:
        """Apply the next entry; return a snapshot now and then, which replaces the log so far."""
        if self.outdated:
            return None
        self._since_compact += 1
        if entry.kind == KIND_COMMAND:
            self._apply_command(now_ms, entry)
        if self.outdated or self._since_compact < COMPACT_ENTRIES:
            return None
        self._since_compact = 0
        return self._context.catalog.snapshot()

    def _apply_command(self, now_ms: int, entry: RaftEntry) -> None:
        context = self._context
        try:
            proposal, command = unpack(entry)
        except LaterVersion as error:
            self._stop(entry.index - 1, f"entry {entry.index}: {error}")
            return
        except ProtocolError as error:
            context.notice("catalog", f"entry {entry.index}: {error}")
            return
        result = context.catalog.apply(entry.index, command, proposal.request)
        is_done = not result.error and not result.is_repeat
        if isinstance(command, DropCopy) and command.member == context.me and is_done:
            context.hosting.drop_copy(command.queue_id)
        context.was_registered = context.is_registered
        for queue_id in result.queues:
            context.hosting.on_queue_changed(queue_id)
        if result.nodes:
            context.hosting.news.of_all = True
            self._list_nodes()
        if result.queues or result.nodes:
            self._leadership.note_changed(result.queues, result.nodes)
        if (proposal.node, proposal.incarnation) == (context.me.node, context.me.incarnation):
            self._leader_requests.on_applied(now_ms, proposal.number, command, result)

    def _list_nodes(self) -> None:
        for name in self._context.admission.list_nodes(self._context.catalog):
            self._context.on_forgotten(name)

    def _stop(self, applied: int, text: str) -> None:
        """Others apply what this node cannot: left out, its catalog would be another one for good.
        Not applied, it is there for the version that knows it."""
        self.outdated, self.applied_max = text, applied
        self._context.notice("catalog", f"stops following the catalog: {text}")

    def restore(self, now_ms: int, data: bytes) -> None:
        """Go on with a snapshot."""
        if not data:
            return
        context = self._context
        try:
            context.catalog = Catalog.restore(data)
        except LaterVersion as error:
            self._stop(0, str(error))
            return
        except ProtocolError as error:
            context.notice("catalog", str(error))
            return
        self.outdated, self.applied_max = "", FOREVER_MS
        context.was_registered = context.is_registered
        context.hosting.on_catalog_replaced(context.catalog)
        self._list_nodes()
        self._leadership.supervise(now_ms, CatalogReplaced(context.catalog))
