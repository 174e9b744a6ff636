"""Measures a node once a second, and reports its alarms. On the node thread.

The measurements use the node's own rounds and never wake the node: an idle node without peers
measures every ten seconds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq import clock, system
from mirrorq.errors import StoreFull
from mirrorq.monitoring.alarms import NAMES_MAX, Alarm, Alarms, Measures
from mirrorq.node.busy_host import BusyHost
from mirrorq.node.known_bytes import known_bytes
from mirrorq.node.shortfall import shortfall
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.views import in_sync_ids
from mirrorq.spool.route import SpoolStatus

if TYPE_CHECKING:
    from mirrorq.engine.engine import Engine
    from mirrorq.node.oversize import Oversize
    from mirrorq.node.timings import Timings
    from mirrorq.store.node_store import Store

log = logging.getLogger("mirrorq")

LOOK_MS = 1000
WAIT_MS = 3000
"""Nodes that are started together found their cluster within so many milliseconds."""
COPIES_MS = 10_000
"""Queues with one copy in sync are found after a change of the catalog, and at this interval."""
ALARM, ALARM_OVER = "alarm", "alarm over"
WAITS = "waits"
COMPUTES = "computes"
SYNCHRONISING = "synchronising"
"""Kinds of notices."""
OF_EVERY_QUEUE = ("store_full", "disk_low")
"""Alarms of a node that are warnings of each of its queues."""
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
OF_OTHERS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"})
"""Kinds of remote file systems. LMDB maps its file into memory and locks it, and a lock or a sync
may not hold there."""
OLDEST_US = 1_577_836_800_000_000
"""2020-01-01: years before mirrorq existed. A clock with an earlier time is wrong."""


def warn_of_machine(path: Path) -> None:
    """Warn of faults of the machine: a store in memory or on a network, and a wrong clock."""
    kind = system.file_system_of(path)
    if kind in IN_MEMORY:
        log.warning(
            "store %s is in memory (%s): all of it is gone when this machine stops. Give the node "
            "a directory on a disk, unless that is what you want",
            path,
            kind,
        )
    elif kind in OF_OTHERS:
        log.warning(
            "store %s is on a network file system (%s), whose locks and syncs may not hold what "
            "they promise: give the node a directory on a disk of this machine",
            path,
            kind,
        )
    wall_us = clock.wall_us()
    if wall_us < OLDEST_US:
        log.warning(
            "the clock of this machine says %s: set it (NTP) before queues are declared, whose "
            "messages have their times from it",
            datetime.fromtimestamp(wall_us // 1_000_000, UTC).date(),
        )


class Watch:
    """Measurements of one node, and the alarms that it has raised. The driver owns the object."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        timings: Timings,
        oversize: Oversize,
        on_notice: Callable[[Notice], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._timings = timings
        self._oversize = oversize
        self._on_notice = on_notice
        self._alarms = Alarms()
        self._waits_since_ms = self._joins_looked_ms = clock.now_ms()
        self.look_ms = self._waits_since_ms + LOOK_MS
        """Time before which `look` does nothing."""
        self._waits_for = ""
        """The last reported reason."""
        self._late_ms = 0
        self._host = BusyHost()
        self._is_known = False
        """True if the store has noted that the cluster knows the node's start."""
        self.spooled: Callable[[], SpoolStatus] = SpoolStatus.nothing
        """Returns the content of all spools of the node."""
        self._damage_count = 0
        self._last_copies: dict[int, str] = {}
        self._copies_of = (-1, 0)
        """(index of the catalog, time) of the last computation."""

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """The raised alarms. From any thread."""
        return self._alarms.raised

    def warnings_of(self, queue_id: int) -> tuple[str, ...]:
        """Return warnings about a queue on the node, for its status."""
        found = []
        for alarm in self._alarms.raised:
            if alarm.name in OF_EVERY_QUEUE and queue_id in self._engine.replicas:
                found.append(f"node {self._engine.me.node}: {alarm.text}")
            elif alarm.name == "last_copy" and queue_id in self._last_copies:
                found.append(f"only node {self._engine.me.node} has a copy in sync")
        found += [f"cannot send: {text}" for text in self._oversize.of_queue(queue_id)]
        return tuple(found)

    def note_late(self, late_ms: int) -> None:
        """Note how late the node thread came back from a wait, in milliseconds."""
        self._late_ms = max(self._late_ms, late_ms)

    def look(self, now_ms: int) -> None:
        """Measure and report, at most once a second.

        Raises:
            StoreError: the store was deleted or replaced: the node must end.
        """
        if now_ms < self.look_ms:
            return
        self.look_ms = now_ms + LOOK_MS
        self._store.check()
        self._tell_wait(now_ms)
        self._note_known()
        self._tell_joins(now_ms)
        if text := self._host.look(self._late_ms / 1000):
            self._on_notice(Notice(COMPUTES, text))
        raised, over = self._alarms.judge(self._measures(now_ms))
        if not raised and not over:
            return
        self._engine.alarms = tuple(alarm.name for alarm in self._alarms.raised)
        for alarm in raised:
            self._on_notice(Notice(ALARM, f"alarm {alarm.name}: {alarm.text}"))
        for alarm in over:
            after_s = (now_ms - alarm.since_ms) // 1000
            self._on_notice(Notice(ALARM_OVER, f"alarm {alarm.name} is over after {after_s} s"))

    def _tell_wait(self, now_ms: int) -> None:
        """Report a node that is in no cluster for long, and the reason, after each change. A user
        who starts the node alone sees no other sign of the wait."""
        text = self._engine.waiting_text()
        if not text:
            self._waits_since_ms, self._waits_for = now_ms, ""
        elif text != self._waits_for and now_ms - self._waits_since_ms >= WAIT_MS:
            self._waits_for = text
            self._on_notice(Notice(WAITS, text))

    def _note_known(self) -> None:
        """Note in the store that the cluster knows the start (`incarnation_after`)."""
        if self._is_known or not self._engine.is_registered:
            return
        try:
            self._store.note_known()
        except StoreFull as error:
            log.debug("it is not noted that the cluster knows this start: %s", error)
        else:
            self._is_known = True

    def _tell_joins(self, now_ms: int) -> None:
        """Report the copies that are being synchronised here, and their progress."""
        if now_ms - self._joins_looked_ms < COPIES_MS:
            return
        self._joins_looked_ms = now_ms
        catalog, replicas = self._engine.catalog, self._engine.replicas
        me = self._engine.me
        joining = [
            queue_id
            for queue_id, one in replicas.items()
            if not one.ring.in_sync and me in catalog.synchronising(queue_id)
        ]
        told = []
        for queue_id in joining[:NAMES_MAX]:
            record, replica = catalog.queue(queue_id), replicas[queue_id]
            if record is None:
                continue
            text = "waits for its master's state"
            if replica.ring.has_state:
                missing = replica.transfer.missing.count
                text = f"has {replica.copied_share:.0%}, {missing} messages are missing"
            told.append(f"{record.name!r} {text}")
        if told:
            more = f", and {len(joining) - len(told)} more" if len(joining) > len(told) else ""
            text = f"copies are being synchronised to this node: {', '.join(told)}{more}"
            self._on_notice(Notice(SYNCHRONISING, text))

    def _measures(self, now_ms: int) -> Measures:
        engine = self._engine
        free, total = self._disk()
        late_ms, self._late_ms = self._late_ms, 0
        spooled = self.spooled()
        engine.note_spooled(spooled.messages, int(spooled.oldest_s))
        return Measures(
            now_ms=now_ms,
            wall_ms=clock.wall_us() // 1000,
            store_used=known_bytes(self._store.store_bytes),
            store_max=engine.config.store_bytes_max,
            disk_free=free,
            disk_total=total,
            is_paused=self._has_lost_majority(now_ms),
            last_copies=tuple(self._find_last_copies(now_ms).values()),
            unsendable=self._oversize.recent(),
            damaged=tuple(self._find_damaged()),
            damage_count=self._damage_since_last_look(),
            commit_ms=int(self._timings.take_longest() * 1000),
            spooled=spooled.messages,
            spooled_s=int(spooled.oldest_s),
            spooled_why=spooled.why,
            set_aside=spooled.set_aside,
            late_ms=late_ms,
            failure_ms=engine.config.failure_ms,
        )

    def _has_lost_majority(self, now_ms: int) -> bool:
        """True without a majority. A sole voter is a majority: only its disk or host is late."""
        engine = self._engine
        return engine.is_founded and len(engine.voters) > 1 and engine.is_paused(now_ms)

    def _disk(self) -> tuple[int, int]:
        try:
            found = os.statvfs(self._store.path)
        except OSError:
            return -1, 0
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def _find_damaged(self) -> list[str]:
        """Return the names of queues with damage in their local copies."""
        hosting, catalog = self._engine.hosting, self._engine.catalog
        records = (catalog.queue(queue_id) for queue_id in (*hosting.mending, *hosting.broken))
        return [record.name for record in records if record is not None]

    def _damage_since_last_look(self) -> int:
        before, self._damage_count = self._damage_count, self._engine.hosting.damage_count
        return self._damage_count - before

    def _find_last_copies(self, now_ms: int) -> dict[int, str]:
        """Return queues mastered here without another copy in sync, though the policy wants one."""
        catalog = self._engine.catalog
        index, looked_ms = self._copies_of
        if index == catalog.applied_index and now_ms - looked_ms < COPIES_MS:
            return self._last_copies
        self._copies_of = (catalog.applied_index, now_ms)
        holders = {node.name: node.member for node in catalog.nodes() if not node.witness}
        self._last_copies = {}
        for record in catalog.queues():
            if record.view.members[0].id != self._engine.me or len(in_sync_ids(record.view)) > 1:
                continue
            definition = catalog.definition_of(record.name)
            if shortfall(record, definition, holders, self._engine.is_alive):
                self._last_copies[record.id] = record.name
        return self._last_copies
