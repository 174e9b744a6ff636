"""`Spools`: the spool of a node or client: one store, opened at first use."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq.api.arguments import check_flags
from mirrorq.errors import ConfigError, ShutDown, StoreError
from mirrorq.protocol.plain import plain
from mirrorq.protocol.validation import declaration_error
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


class Spools:
    """One process's spool.

    Args:
        path: directory of the store, which is made when the first queue is spooled.
        config: its `spool_…` settings.
        host: returns the host that reaches the queues; may raise, and is asked again.
        open_queue: opens a handle on a queue itself, by its name, durable, auto-delete, and a
            time-out in seconds.
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
        self._is_closed = False
        self._opening = Once(self._open)

    def _open(self) -> None:
        if self._is_closed:
            raise ShutDown(f"spool {self._path} is closed")
        self._spool = Spool(self._path, self._config, self._host)

    def resume(self) -> None:
        """Go on with messages of a former process, if the store exists."""
        if (self._path / DATA_FILE).exists():
            try:
                self._opened()
            except StoreError as error:
                # A new spooled queue gets the error; all other work goes on.
                log.error("what was spooled is not sent: %s", error)

    def _opened(self) -> Spool:
        """Return the spool; open it first if it is not open. After an error the next call tries
        again: the process that had the spool may have ended."""
        while (spool := self._spool) is None:
            opening = self._opening
            try:
                opening.run()
            finally:
                if self._spool is None and self._opening is opening:
                    self._opening = Once(self._open)
            if sys.is_finalizing():
                raise ShutDown("the interpreter is ending: no spool can be opened any more")
        return spool

    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        timeout: float | None = None,
        **others: object,
    ) -> SpooledQueue:
        """Return a handle that spools.

        Args:
            timeout: not needed: a spool waits for no cluster.
            others: keywords of a declaration that do not go with a spool, and their values.

        Raises:
            ConfigError: one of `others` was given, or no queue can have the name.
            ShutDown: the node or client is closed.
            StoreLocked, StoreError: the store cannot be opened.
        """
        check_flags(durable=durable, auto_delete=auto_delete)
        for keyword, value in others.items():
            if value:
                raise ConfigError(
                    f"{keyword}={value!r} does not go with a spool: the queue is to be there when "
                    "what is spooled comes, for every process"
                )
        if wrong := declaration_error(name, False, auto_delete, passive=False):
            raise ConfigError(wrong)
        name = plain(name)
        spool = self._opened()
        route = spool.route(name, durable=durable, auto_delete=auto_delete)

        def open_queue(timeout: float | None) -> MirroredQueue:
            return self._open_queue(name, durable, auto_delete, timeout)

        return SpooledQueue(spool, route, open_queue)

    def status(self) -> dict[str, SpoolStatus]:
        """Return the status of each spooled queue, by name. Never waits."""
        spool = self._spool
        if spool is None or spool.is_closing:
            return {}
        return {name: route.status() for name, route in list(spool.routes.items())}

    def total(self) -> SpoolStatus:
        """Return the status of all queues together; `oldest_s` and `why` belong to the message that
        has waited longest. Never waits."""
        found = list(self.status().values())
        oldest = max(found, key=lambda one: one.oldest_s, default=SpoolStatus.nothing())
        return SpoolStatus(
            sum(one.messages for one in found),
            sum(one.bytes for one in found),
            oldest.oldest_s,
            all(one.connected for one in found),
            oldest.why,
            sum(one.set_aside for one in found),
            sum(one.dropped for one in found),
        )

    def begin_closing(self) -> None:
        """Wait until all puts are accepted, and forward nothing more."""
        self._is_closed = True
        if self._opening.callers:
            with suppress(Exception):  # Whoever opens it gets the error.
                self._opening.run()
        if self._spool is not None:
            self._spool.begin_closing()

    def close(self) -> None:
        """Wait until all puts are accepted, and close the store. The next opening sends the
        remaining messages."""
        self.begin_closing()
        if self._spool is not None:
            self._spool.close()
