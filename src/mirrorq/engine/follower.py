"""The catalog as it is applied on this node, and who is told what has changed in it.

All of it goes in portions. A step applies so many entries that are committed, or reads one page of
a snapshot that has come. Until its last page is read, the catalog is the one before, the entries
behind it wait, and no lease counts that needs them (`applied_max`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.cluster.catalog.core import Catalog
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.controller.events import CatalogReplaced
from mirrorq.cluster.raft.core import Raft
from mirrorq.cluster.raft.messages import KIND_COMMAND, Compact
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.context import EngineContext
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.engine.leadership import Leadership
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import DropCopy
from mirrorq.protocol.effects import RaftEntry, RaftSnapshot

COMPACT_ENTRIES = 1000
"""Raft's log is replaced by a snapshot after so many applied entries; after as many as the last
snapshot had records, if these are more: so an entry costs no more than a record of a snapshot."""
APPLIED_MAX = 64
"""Entries applied in one step, with the queues that they change."""


class Follower:
    """Applies what Raft has agreed on."""

    def __init__(
        self, context: EngineContext, leadership: Leadership, leader_requests: LeaderRequests
    ) -> None:
        self.outdated = ""
        """Why this node has stopped following the catalog, "" as a rule. It still votes and keeps
        entries; it hands out nothing, for its queues' views may have changed."""
        self.applied_max = FOREVER_MS
        """The last entry that counts as applied: the last before one that it cannot apply, or
        before a snapshot that is being read."""
        self._context = context
        self._leadership = leadership
        self._leader_requests = leader_requests
        self._since_compact = 0
        """Entries applied since the last snapshot was begun."""
        self._compact_at = COMPACT_ENTRIES
        """After so many the next one is."""
        self._applied = 0
        """Index of the last entry."""
        self._pages: Iterator[Compact] | None = None
        """Left of the snapshot that is being made."""
        self._reading: Iterator[Catalog | None] | None = None
        """A snapshot that has come and is being read."""
        self._read_index = 0
        """Its index."""

    # --- Entries --------------------------------------------------------------------------

    def apply_portion(self, now_ms: int, raft: Raft) -> None:
        """Apply entries that are committed, as many as may change `APPLIED_MAX` queues."""
        left = APPLIED_MAX
        while left > 0 and (entry := raft.take_committed()) is not None:
            left -= 1 + self.apply(now_ms, entry)

    def apply(self, now_ms: int, entry: RaftEntry) -> int:
        """Apply the next entry; return how many queues it has changed."""
        if self.outdated:
            return 0
        self._since_compact += 1
        self._applied = entry.index
        return self._apply_command(now_ms, entry) if entry.kind == KIND_COMMAND else 0

    def _apply_command(self, now_ms: int, entry: RaftEntry) -> int:
        context = self._context
        try:
            proposal, command = unpack(entry)
        except LaterVersion as error:
            self._stop(entry.index - 1, f"entry {entry.index}: {error}")
            return 0
        except ProtocolError as error:
            context.notice("catalog", f"entry {entry.index}: {error}")
            return 0
        result = context.catalog.apply(entry.index, command, proposal.request)
        is_done = not result.error and not result.is_repeat
        if isinstance(command, DropCopy) and command.member == context.me and is_done:
            context.hosting.drop_copy(command.queue_id)
        context.was_registered = context.is_registered
        if result.queues:
            context.hosting.note_changed(result.queues)
        if result.nodes:
            context.hosting.note_nodes(result.nodes)
            self._list_nodes()
        if result.redefines:
            context.hosting.note_policies()
        if result.queues or result.nodes or result.redefines:
            self._leadership.note_changed(result)
        if (proposal.node, proposal.incarnation) == (context.me.node, context.me.incarnation):
            self._leader_requests.on_applied(now_ms, proposal.number, command, result)
        return len(result.queues)

    def _list_nodes(self) -> None:
        for name in self._context.admission.list_nodes(self._context.catalog):
            self._context.on_forgotten(name)

    def _stop(self, applied: int, text: str) -> None:
        """Others apply what this node cannot: left out, its catalog would be another one for good.
        Not applied, it is there for the version that knows it."""
        self.outdated, self.applied_max = text, applied
        self._context.notice("catalog", f"stops following the catalog: {text}")

    # --- Snapshots that are made ----------------------------------------------------------

    @property
    def is_making_snapshot(self) -> bool:
        """Whether there is a next page of a snapshot."""
        return self._pages is not None

    @property
    def is_log_long(self) -> bool:
        """Whether the log is long enough for a snapshot to replace it."""
        return self._since_compact >= self._compact_at

    def begin_snapshot(self) -> None:
        """Have a snapshot of the catalog as it is now made, page by page."""
        self._note_snapshot()
        index, pages = self._applied, enumerate(self._context.catalog.pages())
        self._pages = (Compact(index, page, number, last) for number, (page, last) in pages)

    def _note_snapshot(self) -> None:
        self._since_compact = 0
        self._compact_at = max(COMPACT_ENTRIES, self._context.catalog.size.records)

    def next_page(self) -> Compact:
        """Return the next page of the snapshot; the last one replaces the log before it."""
        assert self._pages is not None
        page = next(self._pages)
        if page.is_last:
            self._pages = None
        return page

    # --- Snapshots that have come ---------------------------------------------------------

    @property
    def is_restoring(self) -> bool:
        """Whether a snapshot is being read."""
        return self._reading is not None

    def restore(self, snapshot: RaftSnapshot) -> None:
        """Begin with a snapshot, which is read page by page."""
        self._pages, self._since_compact = None, 0
        if snapshot.pages:
            self.applied_max = min(self.applied_max, self._applied)
            self._reading, self._read_index = Catalog.read(snapshot.pages), snapshot.index

    def restore_page(self, now_ms: int) -> None:
        """Read the next page; with the last one the catalog is the snapshot's."""
        assert self._reading is not None
        try:
            catalog = next(self._reading)
        except ProtocolError as error:
            self._reading = None
            self._stop(0, str(error))
            return
        if catalog is not None:
            self._applied, self._reading = self._read_index, None
            self._replace(now_ms, catalog)

    def _replace(self, now_ms: int, catalog: Catalog) -> None:
        context = self._context
        context.catalog = catalog
        self.outdated, self.applied_max = "", FOREVER_MS
        self._note_snapshot()
        context.was_registered = context.is_registered
        context.hosting.on_catalog_replaced(catalog)
        self._list_nodes()
        self._leadership.supervise(now_ms, CatalogReplaced(catalog))
