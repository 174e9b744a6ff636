"""The catalog as the node applies it, and the notification of parts about changes.

All work is done in portions. A step applies a limited number of committed entries, or reads one
page of a snapshot. Until its last page is read, the old catalog counts and the entries behind the
snapshot wait. No lease that depends on the waiting entries is valid (`applied_max`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.controller.events import CatalogReplaced
from mirrorq.cluster.raft.messages import KIND_COMMAND, Compact
from mirrorq.cluster.raft.raft import Raft
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.context import EngineContext
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.engine.leadership import Leadership
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import DropCopy
from mirrorq.protocol.effects import RaftEntry, RaftSnapshot

COMPACT_ENTRIES = 1000
"""A snapshot replaces Raft's log after so many applied entries, or after as many as the last
snapshot had records if that is more. So an entry costs no more than a record of a snapshot."""
APPLIED_MAX = 64
"""Budget of one step: each entry counts 1, and each queue that the entry changes counts 1."""


class Follower:
    """Applies entries and snapshots on which Raft has agreed."""

    def __init__(
        self, context: EngineContext, leadership: Leadership, leader_requests: LeaderRequests
    ) -> None:
        self.outdated = ""
        """Reason why the node has stopped following the catalog; "" in normal operation. A stopped
        node still votes and keeps entries. It delivers nothing, because views may have changed."""
        self.applied_max = FOREVER_MS
        """Last entry that counts as applied: the entry before an unknown entry, or the last entry
        before a snapshot that is being read."""
        self._context = context
        self._leadership = leadership
        self._leader_requests = leader_requests
        self._since_compact = 0
        """Entries applied since the last snapshot was begun."""
        self._compact_at = COMPACT_ENTRIES
        """Number of entries after which the next snapshot is made."""
        self._applied = 0
        """Index of the last applied entry."""
        self._pages: Iterator[Compact] | None = None
        """Remaining pages of the snapshot that is being made."""
        self._reading: Iterator[Catalog | None] | None = None
        """The received snapshot that is being read."""
        self._read_index = 0
        """Index of the snapshot that is being read."""

    # --- Entries --------------------------------------------------------------------------

    def apply_portion(self, now_ms: int, raft: Raft) -> None:
        """Apply committed entries until `APPLIED_MAX` entries and changed queues are reached."""
        left = APPLIED_MAX
        while left > 0 and (entry := raft.take_committed()) is not None:
            left -= 1 + self.apply(now_ms, entry)

    def apply(self, now_ms: int, entry: RaftEntry) -> int:
        """Apply the next entry; return the number of queues that the entry has changed."""
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
        for name in self._context.admission.update_nodes(self._context.catalog):
            self._context.on_forgotten(name)

    def _stop(self, applied: int, text: str) -> None:
        """Stop following the catalog before an entry that this version cannot apply. Skipping the
        entry would make catalogs differ for good. A later version will apply it."""
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
        """Begin a snapshot of the current catalog, made page by page."""
        self._note_snapshot()
        index, pages = self._applied, enumerate(self._context.catalog.pages())
        self._pages = (Compact(index, page, number, last) for number, (page, last) in pages)

    def _note_snapshot(self) -> None:
        self._since_compact = 0
        self._compact_at = max(COMPACT_ENTRIES, self._context.catalog.size.records)

    def next_page(self) -> Compact:
        """Return the next page of the snapshot; the last page replaces the log before it."""
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
        """Begin to read a snapshot page by page."""
        self._pages, self._since_compact = None, 0
        if snapshot.pages:
            self.applied_max = min(self.applied_max, self._applied)
            self._reading, self._read_index = Catalog.read(snapshot.pages), snapshot.index

    def restore_page(self, now_ms: int) -> None:
        """Read the next page; the last page makes the snapshot the catalog."""
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
