"""Looks at a cluster periodically, for all browsers together, and packs the result.

One look serves every page. Without a watcher there are few looks, enough to see changes of masters.
With many queues there are fewer looks: a look costs the node and this process about 2 % of a core
each at most, with any number of queues.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

import attrs
import msgspec

from mirrorq.dashboard.history import History
from mirrorq.errors import MirrorQError
from mirrorq.monitoring.alarms import ADVICE
from mirrorq.monitoring.status import NodeStatus, PolicyStatus, QueueStatus

log = logging.getLogger("mirrorq")

LOOK_S = 1.0
IDLE_S = 10.0
"""Time between looks without a watcher."""
WATCHED_S = 15.0
"""A page counts as a watcher for this long after a request."""
PAUSE_FACTOR = 50
QUEUE_S = 0.0001
"""Approximate time that one queue costs the reporting node."""
TEXT_MAX = 2000
"""Limit of characters of a foreign text."""


class Cluster(Protocol):
    """The observed `Node` or `Client`."""

    @property
    def _unfounded(self) -> str: ...
    def queues(self, *, shards: bool = False) -> list[QueueStatus]: ...
    def nodes(self) -> list[NodeStatus]: ...
    def policies(self) -> list[PolicyStatus]: ...


class Observer:
    """Looks on a thread of its own; `state` and `past` may be called from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._history = History()
        self._nodes: list[NodeStatus] = []
        self._policies: list[PolicyStatus] = []
        self._error = "nothing has been seen yet"
        self._state = b"{}"
        self._past: bytes | None = None
        self._lock = threading.Lock()
        """Held while the history is read or written: never while the cluster is asked."""
        self._watched_until = 0.0
        self._wake = threading.Event()
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="mirrorq-dashboard", daemon=True)

    def start(self) -> None:
        self._pack()
        self._thread.start()

    def stop(self) -> None:
        self._is_ended = True
        self._wake.set()
        # The thread may wait for a node that stands still; no code depends on the thread's end.
        self._thread.join(0.5)

    def state(self) -> bytes:
        """Return JSON of the present state, with the newest point of each queue."""
        self._note_watcher()
        return self._state

    def past(self) -> bytes:
        """JSON of all points of the past."""
        self._note_watcher()
        with self._lock:
            if self._past is None:
                self._past = self._pack_past()
            return self._past

    def hurry(self) -> None:
        """Something was done: look soon."""
        self._wake.set()

    def _note_watcher(self) -> None:
        was_watched = time.monotonic() < self._watched_until
        self._watched_until = time.monotonic() + WATCHED_S
        if not was_watched:
            self._wake.set()

    # --- Looking --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ended:
            self._wake.clear()
            began = time.thread_time()
            self._look()
            # Of processors, not of the clock: a busy machine is no reason to look away.
            cost = time.thread_time() - began + QUEUE_S * self._history.queue_count
            is_watched = time.monotonic() < self._watched_until
            self._wake.wait(max(LOOK_S if is_watched else IDLE_S, PAUSE_FACTOR * cost))

    def _look(self) -> None:
        try:
            # Of a sharded queue each shard is a ring, and there is none of the whole.
            told = self._cluster.queues(shards=True)
            queues = [queue for queue in told if not queue.shards]
            self._nodes = self._cluster.nodes()
            self._policies = self._cluster.policies()
            self._error = self._cluster._unfounded
        except MirrorQError as error:
            self._error = str(error)
        except Exception:
            log.exception("the dashboard cannot look at the cluster")
            self._error = "the dashboard failed: see its log"
        with self._lock:
            if not self._error:
                self._history.note(time.time_ns() // 1_000_000, queues)
            self._past = None
            self._pack()

    def _pack(self) -> None:
        history = self._history
        seen = history.queues()
        state = {
            "number": history.number,
            "at_ms": history.times_ms[-1] if history.times_ms else 0,
            "error": self._error[:TEXT_MAX],
            "queue_count": history.queue_count,
            "advice": ADVICE,
            "nodes": [attrs.asdict(node) for node in self._nodes],
            "policies": [attrs.asdict(policy) for policy in self._policies],
            "changes": [attrs.asdict(change) for change in reversed(history.changes)],
            "queues": [
                {**attrs.asdict(status), "point": attrs.astuple(points[-1])}
                for status, points in seen
            ],
        }
        self._state = msgspec.json.encode(state)

    def _pack_past(self) -> bytes:
        history = self._history
        return msgspec.json.encode(
            {
                "number": history.number,
                "times_ms": list(history.times_ms),
                "points": {
                    status.name: [attrs.astuple(point) for point in points]
                    for status, points in history.queues()
                },
            }
        )
