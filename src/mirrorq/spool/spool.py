"""`Spool`: a local store, a `Route` for each target, and the forwarder, one thread for all routes.

The forwarder has a bounded number of *places*. A route with messages waits for a place. It leaves
when its messages are gone, or without progress while other routes wait. So targets without messages
cost nothing, and a thousand targets with messages cost no more than the places.

*Threads*: users' threads put into local queues; hosts' threads note accepted and confirmed
messages; the forwarder does all other work.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.api.completion import Outcomes
from mirrorq.errors import MirrorQError, NoQuorum, ShutDown
from mirrorq.spool.local import LocalStore, Record
from mirrorq.spool.route import Route
from mirrorq.waiting import Doorbell, Latch, begin_thread

if TYPE_CHECKING:
    from mirrorq.api.host import Host
    from mirrorq.config import Config

log = logging.getLogger("mirrorq")

PLACES = 8
"""Number of targets that are sent to at once."""
AGAIN_S = (0.2, 5.0)
"""Wait after a failed connection in seconds: the first wait, the longest wait."""
IDLE_S = 5.0
"""A route without messages keeps its place this long, if no other route waits."""
TURN_S = 5.0
"""A route without progress leaves its place to another route after this time."""
LOOK_S = 1.0
"""Interval of the forwarder's looks for messages that have ended in their local queues."""
LOOKED_AT = 8
"""Number of waiting routes in one look."""
CLOSE_S = 5.0


class Spool:
    """A store of accepted puts, and the thread that brings them to their queues.

    Args:
        path: directory of the store; no other process has the store open at the same time.
        config: the limits of its node, and the `spool_…` settings.
        host: returns the node or client that reaches the targets; may raise, and is asked
            again.

    Raises:
        StoreLocked, StoreError: the store cannot be opened.
    """

    def __init__(self, path: Path, config: Config, host: Callable[[], Host]) -> None:
        self.path = path
        self.config = config
        self._find_host = host
        self._pid = os.getpid()
        self.outcomes = Outcomes()
        """Outcomes of all puts."""
        self.bell = Doorbell()
        """Wakes the forwarder."""
        self.is_closing = self.is_closed = False
        self._failure = ""
        self._ended = Latch()
        self.why = ""
        """Why the cluster is not reached, "" if reached or never tried."""
        self._away_until = 0.0
        self._away_s = 0.0
        self._look_at = 0.0
        self._waiting: deque[Route] = deque()
        """Routes with messages and without a place."""
        self._placed: dict[Route, float] = {}
        """Routes with a place -> time of the last progress."""
        self.store = LocalStore(path, config)
        self.routes = {name: Route(self, name) for name in self.store.records}
        """Name of the target -> route."""
        for name, count in self.store.filled.items():
            self.routes[name].count = count
            self.fill(self.routes[name])
        thread = threading.Thread(target=self._run, name="mirrorq-forwarder", daemon=True)
        begin_thread(thread)

    # --- Any thread ---------------------------------------------------------------------------

    def route(self, name: str, *, durable: bool, auto_delete: bool) -> Route:
        """Return the route of a target; a new name gets a new route."""
        self.check()
        found = self.routes.get(name)
        if found is None:
            self.store.store_record(Record(name, durable, auto_delete))
            found = self.routes.setdefault(name, Route(self, name))
        found.open()
        return found

    def check(self) -> None:
        """Raises: ShutDown: the spool is closed, has failed, or was opened before a fork."""
        if self._failure:
            raise ShutDown(f"spool {self.path} has failed: {self._failure}")
        if self.is_closing:
            raise ShutDown(f"spool {self.path} is closed")
        if self.is_forked:
            raise ShutDown(
                f"spool {self.path} was opened by process {self._pid}, before this one was forked: "
                "open one with a path of its own"
            )

    @property
    def is_forked(self) -> bool:
        """True if the spool was opened before a fork: it is the parent's."""
        return os.getpid() != self._pid

    def fill(self, route: Route) -> None:
        """A route has messages."""
        if not route.is_filled:
            route.is_filled = True
            self._waiting.append(route)
        if not self.why:  # while the cluster is away the forwarder looks by itself
            self.bell.ring()

    @property
    def dropped_text(self) -> str:
        """Why messages end in a local queue."""
        config = self.config
        why = "its ttl was over"
        if config.spool_age_ms_max:
            why = f"it waited for longer than spool_age_ms_max {config.spool_age_ms_max} or {why}"
        if config.spool_overflow == "drop-head":
            why = f"the spool is full (spool_bytes_max {config.spool_bytes_max}) or {why}"
        return why

    def begin_closing(self) -> None:
        """Wait until all puts are accepted, and forward nothing more."""
        if self.is_forked:
            return
        for route in () if self.is_closing else list(self.routes.values()):
            if "local" in route.__dict__:
                route.local.outcomes.wait_for(route.local.is_quiet, CLOSE_S)
        self.is_closing = True
        self.bell.ring()

    def close(self) -> None:
        """Wait until all puts are accepted, and end. The next opening of the spool sends
        unconfirmed messages. May be repeated, and does nothing in a forked child."""
        if self.is_closed or self.is_forked:
            return
        self.is_closed = True
        self.begin_closing()
        self._ended.wait(CLOSE_S)
        self._end_open("was closed")
        self.store.close()
        self.outcomes.close(CLOSE_S)

    def _end_open(self, why: str) -> None:
        for route in list(self.routes.values()):
            route.end_open(f"spool {self.path} {why}: what it has is sent when it is opened again")
        self.outcomes.notify()

    # --- The forwarder --------------------------------------------------------------------------

    def host(self) -> Host:
        """Return the host that reaches the targets.

        Raises:
            MirrorQError: there is no host.
        """
        try:
            return self._find_host()
        except MirrorQError as error:
            raise NoQuorum(str(error)) from error

    def _run(self) -> None:
        try:
            while not self.is_closing:
                self.bell.wait(self._round())
        except BaseException as error:
            self._failure = str(error)
            log.exception("spool %s has failed: what it has stays there", self.path)
        finally:
            for route in self._placed:
                if "line" in route.__dict__:
                    route.drop_target("the spool is closed")
            self._ended.set()
            if self._failure:
                self._end_open(f"has failed: {self._failure}")

    def _round(self) -> float | None:
        """Do all due work; return the seconds until the next round, None: wait for a ring."""
        if self.store.node.is_closed:
            self._failure = self._failure or "its store is closed, or cannot be used"
            raise ShutDown(self._failure)
        now = clock.monotonic()
        if now >= self._look_at:
            self._look(now)
        if now < self._away_until:
            for route in self._placed:
                self._attempt(route, route.settle)
            return min(self._away_until, self._look_at) - now
        self._give_places(now)
        for route in list(self._placed):
            if now >= self._away_until:  # Each try to reach the cluster takes its time.
                self._advance(route, now)
        return self._next_look(clock.monotonic())

    def _look(self, now: float) -> None:
        """Look which messages have ended in their local queues."""
        self._look_at = now + LOOK_S
        for route in [*self._placed, *islice(self._waiting, LOOKED_AT)]:
            self._attempt(route, route.note_drops)
        if len(self._waiting) > LOOKED_AT:
            self._waiting.rotate(-LOOKED_AT)

    def _give_places(self, now: float) -> None:
        for _ in range(len(self._waiting)):
            if len(self._placed) >= PLACES:
                return
            route = self._waiting.popleft()
            if route.open_at > now:
                self._waiting.append(route)
            else:
                self._placed[route] = now

    def _advance(self, route: Route, now: float) -> None:
        """Settle and send as far as possible now."""
        if not self._attempt(route, lambda: self._forward(route)):
            return
        others, still_s = bool(self._waiting), now - self._placed[route]
        if (others or still_s > IDLE_S) if route.is_empty else (others and still_s > TURN_S):
            self._leave(route)

    def _forward(self, route: Route) -> None:
        route.open()
        acked_to = route.line.acked_to
        route.settle()
        route.send()
        if route.line.acked_to != acked_to or (route.target is not None and self.why):
            self._placed[route] = clock.monotonic()
        if route.target is not None:
            self._note_reached()

    def _leave(self, route: Route) -> None:
        """Take the place from a route."""
        self._placed.pop(route, None)
        if "line" in route.__dict__:
            route.drop_target(route.why_not)
        route.is_filled = False
        if "line" not in route.__dict__ or not route.is_empty:
            self.fill(route)

    def _attempt(self, route: Route, work: Callable[[], None]) -> bool:
        """Do some work; return true on success. Refused work is done again later."""
        try:
            work()
            return True
        except NoQuorum as error:
            self._note_away(str(error))
        except (MirrorQError, TimeoutError) as error:
            self._note_refused(route, str(error))
        return False

    def _note_away(self, why: str) -> None:
        self._away_s = min(max(2 * self._away_s, AGAIN_S[0]), AGAIN_S[1])
        self._away_until = clock.monotonic() + self._away_s
        if not self.why and not self.is_closing:
            log.warning("puts are spooled in %s: %s", self.path, why)
        self.why = why

    def _note_reached(self) -> None:
        if self.why:
            log.info("the cluster is reached: what is spooled in %s is sent", self.path)
            self.bell.ring()
        self.why, self._away_s = "", 0.0

    def _note_refused(self, route: Route, why: str) -> None:
        if not self.is_closing and why.partition(":")[0] != route.why_not.partition(":")[0]:
            log.warning("puts into queue %s are spooled: %s", route.name, why)
        route.again_s = min(max(2 * route.again_s, AGAIN_S[0]), AGAIN_S[1])
        route.open_at = clock.monotonic() + route.again_s
        route.why_not = why
        if route in self._placed:
            self._leave(route)

    def _next_look(self, now: float) -> float | None:
        due = [route.open_at for route in islice(self._waiting, LOOKED_AT)]
        if self._placed or due:
            due.append(self._look_at)
        return max(min(due) - now, 0.0) if due else None
