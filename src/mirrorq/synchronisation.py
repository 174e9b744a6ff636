"""Waiting until the mirrors of a queue are in sync, by what `queues()` tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mirrorq.errors import MirrorQError, QueueNotFound
from mirrorq.status import QueueStatus

__all__ = ["GRACE_LOOKS", "LOOK_S", "Waiting"]

LOOK_S = 0.1
"""Between two looks."""
GRACE_LOOKS = 50
"""Something is wrong when so many looks in a row say so: a mirror that was out of reach for
a moment is given this to come back, and a client's next entry node to catch up."""


class Waiting:
    """Waits for the mirrors that were not in sync at its first look."""

    def __init__(
        self, queue: str, on_progress: Callable[[QueueStatus], None] | None = None
    ) -> None:
        self.queue = queue
        self._on_progress = on_progress
        self._awaited: tuple[str, ...] | None = None
        self._wrong_count = 0

    def look(self, queues: Iterable[QueueStatus]) -> bool:
        """Say whether all are in sync by now.

        Raises:
            QueueNotFound: the queue is no more.
            MirrorQError: one of them has gone, was restarted, or its synchronisation was
                cancelled. The others go on.
        """
        status = next((each for each in queues if each.name == self.queue), None)
        wrong: MirrorQError | None = None
        if status is None:
            wrong = QueueNotFound(f"queue {self.queue!r} is no more")
        else:
            in_sync = (*status.synchronised_mirrors, status.master)
            if self._awaited is None:
                self._awaited = tuple(m for m in status.mirrors if m not in in_sync)
            left = tuple(name for name in self._awaited if name not in in_sync)
            if self._on_progress is not None:
                self._on_progress(status)
            if not left:
                return True
            wrong = self._what_is_wrong(status, left)
        if wrong is None:
            self._wrong_count = 0
            return False
        self._wrong_count += 1
        if self._wrong_count >= GRACE_LOOKS:
            raise wrong
        return False

    def _what_is_wrong(self, status: QueueStatus, left: tuple[str, ...]) -> MirrorQError | None:
        gone = [name for name in left if name not in status.mirrors]
        if gone:
            return MirrorQError(
                f"{', '.join(gone)} left queue {self.queue!r} before it was in sync: start it, "
                "and synchronise again; what it has is kept"
            )
        if status.sync_progress is None:
            return MirrorQError(
                f"{', '.join(left)} of queue {self.queue!r} is no longer being synchronised: it "
                "was cancelled, or its node was restarted. What it has is kept: synchronise again"
            )
        return None
