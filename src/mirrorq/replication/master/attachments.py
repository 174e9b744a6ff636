"""The handles that a master serves: an attachment each, with numbers in both directions. Pure.

Requests of an attachment have the numbers 1, 2, 3, …, and so have its replies. A gap means that a
message was lost on the way. The master answers a gap with Detached, and the handle attaches again.
A handle with a broken link to its node must attach again, too. After a time it counts as gone.

A client's handle has a session at each entry node, one after the other. Together the sessions are
its *line*. Only the newest session of a line is served, and inherits everything that the former
session held.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from attrs import define, field

from mirrorq.containers.range_map import RangeMap
from mirrorq.containers.timers import FOREVER_MS, Timer
from mirrorq.protocol.identities import SessionId, connection_of
from mirrorq.protocol.sessions import Attach, Detached, Flow, Reply, SessionReply, SessionRequest
from mirrorq.replication.master.limits import Depth, Limit, full_text


@define
class Told:
    """Room in the queue as known to one attachment. Without known room, puts wait at the caller.

    The master tells a producer up to which number it may publish, counted from the highest number
    in the log. The handle counts its own puts by itself. There is news at once when other producers
    fill the queue, or when the free room is at least double the handle's knowledge. Less new room
    is told after a while.
    """

    flow: Flow | None = None
    """Last Flow sent; None: the handle knows no bound."""
    size_since: int = 0
    """Bytes of bodies published by the handle since the last Flow, of refused messages too."""
    is_withheld: bool = False
    """The handle knows less room than there is."""

    def news(
        self,
        limit: Limit | None,
        depth: Depth,
        producer: int,
        highest: int,
        count_max: int,
        *,
        is_due: bool,
    ) -> Flow | None:
        """Return the Flow that the handle should get now; None without news.

        Args:
            producer, highest: the handle's producer id and its highest number in the log.
            count_max: greatest count that a Flow names.
            is_due: any new room is news.
        """
        self.is_withheld = False
        if limit is None or limit.overflow != "block":
            flow = None if self.flow is None else Flow(False)
            self.flow = None
            return flow
        room = limit.room(depth)
        flow = Flow(
            True,
            producer,
            highest,
            min(max(room.count, 0), count_max),
            max(room.size, 0),
            limit.count,
            limit.size,
            full_text(limit, depth) if limit.is_reached(depth) else "",
        )
        if not self._is_news(flow, 1 if is_due else 2):
            self.is_withheld = self._is_news(flow, 1)
            return None
        self.flow = flow
        self.size_since = 0
        return flow

    def _is_news(self, flow: Flow, factor: int) -> bool:
        told = self.flow
        terms = flow.producer, flow.count_max, flow.size_max
        if told is None or (told.producer, told.count_max, told.size_max) != terms:
            return True
        count = told.count - (flow.highest - told.highest)
        size = told.size - self.size_since
        return _differs(count, flow.count, factor) or _differs(size, flow.size, factor)


def _differs(known: int, now: int, factor: int) -> bool:
    """Return true if there is less room than a handle knows, or so many times as much."""
    return now < known or (now > known and now >= factor * known)


class Claims:
    """The sessions that publish under each producer id, in one term: receivers of the outcomes.

    As a rule one session publishes under an id. After a failover of the publisher there are two for
    a while: another node's master sends an outbox on, or a client has moved to another node.
    Requests of the former session may arrive last. The end of a session therefore removes only its
    own claim.

    An id belongs to the key that opened it or, in a later term, to the first key that names the id.
    Otherwise a client could use up another client's numbers, and the owner would take its own
    messages for stored. Handles of nodes, and clients without keys, share an owner.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[SessionId, ...]] = {}
        self._owners = RangeMap(1)
        """Number of the owner of each id."""
        self._numbers: dict[str, int] = {}

    def open(self, producer: int, owner: str) -> None:
        """Give the id to this owner."""
        self._owners.put(producer, producer, self._number(owner))

    def _number(self, owner: str) -> int:
        return self._numbers.setdefault(owner, len(self._numbers) + 1)

    def admits(self, producer: int, owner: str) -> bool:
        """Return true if this owner may publish under the id. A free id becomes its own."""
        (known,) = self._owners.at(producer)
        if not known:
            self.open(producer, owner)
        return known in (0, self._number(owner))

    def add(self, producer: int, session: SessionId) -> None:
        """Add the session to the publishers of the id."""
        known = self._sessions.get(producer, ())
        if session not in known:
            self._sessions[producer] = (*known, session)

    def of(self, producer: int) -> tuple[SessionId, ...]:
        """Sessions that publish under the id."""
        return self._sessions.get(producer, ())

    def drop(self, producer: int, session: SessionId) -> None:
        """Remove the session from the publishers of the id."""
        left = tuple(one for one in self._sessions.get(producer, ()) if one != session)
        if left:
            self._sessions[producer] = left
        else:
            self._sessions.pop(producer, None)

    def forget(self, producer: int) -> None:
        """Forget an expired id."""
        self._owners.remove(producer, producer)
        self._sessions.pop(producer, None)


@define
class Attachment:
    """A session's present attachment at a master."""

    number: int
    requests: int = 0
    """Number of the last request taken."""
    replies: int = 0
    producer: int = 0
    owner: str = ""
    """Key of the client."""
    line: int = 0
    """Line of a client's handle (see `Attach`); 0: the handle is on a node."""
    turn: int = 0
    connection: str = ""
    """Name of the connection (see `connection_of`)."""
    lost_ms: int | None = None
    """Time at which the link to the session's node broke; None while the session is attached."""
    told: Told = field(factory=Told)

    def handle(self, session: SessionId) -> Hashable:
        """Identity of the handle across entry nodes. A handle without a line is its session."""
        return (self.owner, self.line) if self.line else session


class Attachments:
    """The handles that are attached to the queue in a master's term.

    Args:
        patience_ms: time for a session with a broken link to attach again.
        overdue: wakes the master when a session has not attached in time.
    """

    def __init__(self, queue_id: int, term: int, patience_ms: int, overdue: Timer) -> None:
        self.replies: list[SessionReply] = []
        """Replies to be sent."""
        self._queue_id = queue_id
        self._term = term
        self._open: dict[SessionId, Attachment] = {}
        self._counts: dict[str, int] = {}
        """Number of handles of each connection."""
        self._lines: dict[tuple[str, int], SessionId] = {}
        """(owner, line) -> its newest session, which is attached."""
        self._patience_ms = patience_ms
        self._overdue = overdue

    def get(self, session: SessionId) -> Attachment | None:
        return self._open.get(session)

    def number_of(self, session: SessionId) -> int:
        """Number of the session's present attachment, 0 without any."""
        attachment = self._open.get(session)
        return 0 if attachment is None else attachment.number

    def count_of(self, connection: str) -> int:
        """Number of attached handles of a connection."""
        return self._counts.get(connection, 0)

    def __iter__(self) -> Iterator[SessionId]:
        return iter(self._open)

    def __contains__(self, session: object) -> bool:
        return session in self._open

    def all(self) -> Collection[tuple[SessionId, Attachment]]:
        return self._open.items()

    # --- Numbers --------------------------------------------------------------------------

    def attach(self, request: SessionRequest, body: Attach) -> Attachment | None:
        """Attach a session, in place of its older attachment. Returns None when the request is
        older, or when the client has moved to another entry node."""
        session = request.session
        if self.number_of(session) >= request.attachment:
            return None
        former = self._lines.get((body.owner, body.line))
        if former not in (None, session) and self._open[former].turn >= body.turn:
            return None
        self.detach(session)
        attachment = Attachment(
            request.attachment,
            requests=request.number,
            owner=body.owner,
            line=body.line,
            turn=body.turn,
            connection=body.connection or connection_of(session),
        )
        self._counts[attachment.connection] = self.count_of(attachment.connection) + 1
        self._open[session] = attachment
        if body.line:
            self._lines[body.owner, body.line] = session
        return attachment

    def former(self, session: SessionId, body: Attach) -> SessionId | None:
        """Session of the same handle at the client's former entry node, or None."""
        former = self._lines.get((body.owner, body.line))
        return None if former == session else former

    def accept(self, request: SessionRequest) -> Attachment | None:
        """Take the next request of an attachment. After a gap the answer is Detached."""
        attachment = self._open.get(request.session)
        if attachment is None or attachment.number != request.attachment:
            if attachment is None or attachment.number < request.attachment:
                self._detach(request)
            return None
        if request.number != attachment.requests + 1:
            if request.number > attachment.requests:
                self._detach(request)
            return None
        attachment.requests = request.number
        return attachment

    def _detach(self, request: SessionRequest) -> None:
        """Answer Detached outside any attachment: with number 0."""
        session, number = request.session, request.attachment
        self.replies.append(
            SessionReply(request.queue_id, request.epoch, session, number, 0, Detached())
        )

    def reply(self, session: SessionId, reply: Reply) -> None:
        """Answer a session, if it is still attached."""
        attachment = self._open.get(session)
        if attachment is None:
            return
        attachment.replies += 1
        number = attachment.number
        self.replies.append(
            SessionReply(self._queue_id, self._term, session, number, attachment.replies, reply)
        )

    def detach(self, session: SessionId) -> Attachment | None:
        """Remove a session. Returns its attachment, or None."""
        attachment = self._open.pop(session, None)
        if attachment is not None:
            left = self._counts.pop(attachment.connection) - 1
            if left:
                self._counts[attachment.connection] = left
            line = attachment.owner, attachment.line
            if self._lines.get(line) == session:
                del self._lines[line]
        return attachment

    # --- Broken links ---------------------------------------------------------------------

    def on_link_lost(self, now_ms: int, node: str) -> None:
        """Note that handles on the node must attach again in time."""
        for session, attachment in self._open.items():
            if session.node == node and attachment.lost_ms is None:
                attachment.lost_ms = now_ms
                self._overdue.set_by(now_ms + self._patience_ms)

    def overdue(self, now_ms: int) -> list[SessionId]:
        """Sessions that have not attached again in time since their link broke."""
        ends = {
            session: attachment.lost_ms + self._patience_ms
            for session, attachment in self._open.items()
            if attachment.lost_ms is not None
        }
        left = (end_ms for end_ms in ends.values() if now_ms < end_ms)
        self._overdue.set(min(left, default=FOREVER_MS))
        return [session for session, end_ms in ends.items() if now_ms >= end_ms]
