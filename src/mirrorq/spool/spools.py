"""`Spools`: what a node, or a client, has of spools: one file, opened when it is first needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq.errors import ConfigError, StoreError
from mirrorq.spool.queue import SpooledQueue
from mirrorq.spool.route import SpoolStatus
from mirrorq.spool.spool import Spool
from mirrorq.waiting import Once

if TYPE_CHECKING:
    from mirrorq.api.host import Host
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.config import Config

log = logging.getLogger("mirrorq")

DATA_FILE = "data.mdb"
LOOKED_AT = 32


class Spools:
    """One process's spool.

    Args:
        path: directory of its file, which is made when the first queue is spooled.
        config: its `spool_…` settings.
        host: gives what queues are reached over; may raise, and is asked again.
        open_queue: a handle on a queue itself: its name, whether it is durable and auto-delete, and
            a time-out in seconds.

    *Threads*: any may call any method.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        host: Callable[[], Host],
        open_queue: Callable[[str, bool, bool, float | None], MirroredQueue],
    ) -> None:
        self._path = path
        self._config = config
        self._host = host
        self._open_queue = open_queue
        self._spool: Spool | None = None
        self._opening = Once(self._open)

    def _open(self) -> None:
        self._spool = Spool(self._path, self._config, self._host)

    def resume(self) -> None:
        """Go on with what a former process has left, if it has."""
        if (self._path / DATA_FILE).exists():
            try:
                self._opening.run()
            except StoreError as error:
                # Who spools again is told so; all others go on.
                log.error("what was spooled is not sent: %s", error)

    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        others: Mapping[str, object] | None = None,
    ) -> SpooledQueue:
        """A handle that spools.

        Args:
            others: keywords of a declaration that do not go with a spool, and their values.

        Raises:
            ConfigError: one of `others` was given.
            StoreLocked, StoreError: the file cannot be opened.
        """
        for keyword, value in (others or {}).items():
            if value:
                raise ConfigError(
                    f"{keyword}={value!r} does not go with a spool: the queue is to be there when "
                    "what is spooled comes, for every process"
                )
        self._opening.run()
        spool = self._spool
        assert spool is not None
        route = spool.route(name, durable=durable, auto_delete=auto_delete)

        def open_queue(timeout: float | None) -> MirroredQueue:
            return self._open_queue(name, durable, auto_delete, timeout)

        return SpooledQueue(spool, route, open_queue)

    def status(self) -> dict[str, SpoolStatus]:
        """What is spooled, by the names of queues."""
        spool = self._spool
        if spool is None or spool.is_closed:
            return {}
        return {name: spool.status(route) for name, route in spool.routes.items()}

    def total(self) -> SpoolStatus:
        """What is spooled for all queues together. `oldest_s` and `why` are those of the longest
        waiting of `LOOKED_AT` queues: each costs a look at the disk."""
        spool = self._spool
        if spool is None or spool.is_closed:
            return SpoolStatus.nothing()
        routes = list(spool.routes.values())
        filled = (route for route in routes if route.head.count)
        looked_at = [spool.status(route) for route in islice(filled, LOOKED_AT)]
        oldest = max(looked_at, key=lambda one: one.oldest_s, default=SpoolStatus.nothing())
        return SpoolStatus(
            sum(route.head.count for route in routes),
            sum(route.head.size for route in routes),
            oldest.oldest_s,
            all(route.handle is not None for route in routes),
            oldest.why,
            sum(route.head.aside_count for route in routes),
            sum(route.dropped for route in routes),
        )

    def close(self) -> None:
        """Have everything that was put accepted, and close the file. What is left in it is sent
        when it is opened again."""
        if self._spool is not None:
            self._spool.close()
