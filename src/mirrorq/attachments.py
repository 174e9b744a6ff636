"""The handles that a master serves: one attachment each, with numbers both ways. Pure.

Requests of an attachment count 1, 2, 3, … and replies do: a gap means that something was lost on
the way, is answered with Detached, and the handle attaches anew. A handle whose link to its node
broke has to do so, too; who does not in time is gone.

A client's handle has a session at each node where its client enters, one after the other: its
*line*. Of a line only the newest session is served, and what the one before it had is its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attrs import define, field

from mirrorq.flow import Told
from mirrorq.messages import Attach, Detached, Reply, SessionId, SessionReply, SessionRequest

__all__ = ["Attachment", "Attachments"]


@define
class Attachment:
    """One session's present attachment at a master."""

    number: int
    requests: int = 0
    """Number of the last request taken."""
    replies: int = 0
    producer: int = 0
    owner: str = ""
    """The key of a client."""
    line: int = 0
    """Of a client's handle, see `Attach`; 0: it is on a node."""
    turn: int = 0
    lost_ms: int | None = None
    """When the link to the session's node broke; None once it has attached again."""
    told: Told = field(factory=Told)


class Attachments:
    """All of one reign."""

    def __init__(self, queue_id: int, reign: int) -> None:
        self.replies: list[SessionReply] = []
        """What is to be sent."""
        self._queue_id = queue_id
        self._reign = reign
        self._open: dict[SessionId, Attachment] = {}
        self._lines: dict[tuple[str, int], SessionId] = {}
        """(owner, line) -> its newest session: that one is attached."""
        self._has_lost = False
        """The link to some session's node broke."""

    def get(self, session: SessionId) -> Attachment | None:
        return self._open.get(session)

    def number_of(self, session: SessionId) -> int:
        """Number of the session's present attachment, 0 when it has none."""
        attachment = self._open.get(session)
        return 0 if attachment is None else attachment.number

    def __iter__(self) -> Iterator[SessionId]:
        return iter(self._open)

    def __contains__(self, session: object) -> bool:
        return session in self._open

    def all(self) -> Collection[tuple[SessionId, Attachment]]:
        return self._open.items()

    # --- Numbers --------------------------------------------------------------------------

    def begin(self, request: SessionRequest, body: Attach) -> Attachment | None:
        """Attach, in place of an older attachment of that session; None: it is older itself, or
        its client has gone on to another entry node."""
        session = request.session
        if self.number_of(session) >= request.attachment:
            return None
        former = self._lines.get((body.owner, body.line))
        if former not in (None, session) and self._open[former].turn >= body.turn:
            return None
        self.end(session)
        attachment = Attachment(
            request.attachment,
            requests=request.number,
            owner=body.owner,
            line=body.line,
            turn=body.turn,
        )
        self._open[session] = attachment
        if body.line:
            self._lines[body.owner, body.line] = session
        return attachment

    def former(self, session: SessionId, body: Attach) -> SessionId | None:
        """The session that this handle had at its client's entry node before this one."""
        former = self._lines.get((body.owner, body.line))
        return None if former == session else former

    def accept(self, request: SessionRequest) -> Attachment | None:
        """Take the next request of an attachment; say Detached when one before it was lost."""
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
        """Answer outside any attachment: number 0."""
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
            SessionReply(self._queue_id, self._reign, session, number, attachment.replies, reply)
        )

    def end(self, session: SessionId) -> Attachment | None:
        """The session is gone. Returns what it had."""
        attachment = self._open.pop(session, None)
        if attachment is not None:
            line = attachment.owner, attachment.line
            if self._lines.get(line) == session:
                del self._lines[line]
        return attachment

    # --- Broken links ---------------------------------------------------------------------

    def on_link_lost(self, now_ms: int, node: str) -> None:
        """Handles on that node must attach again."""
        for session, attachment in self._open.items():
            if session.node == node and attachment.lost_ms is None:
                attachment.lost_ms = now_ms
                self._has_lost = True

    def overdue(self, now_ms: int, patience_ms: int) -> list[SessionId]:
        """Who has not attached again for so long since its link broke."""
        if not self._has_lost:
            return []
        lost = self._lost()
        found = [session for session, since_ms in lost if now_ms - since_ms >= patience_ms]
        self._has_lost = len(found) < len(lost)
        return found

    def wake_at_ms(self, patience_ms: int) -> int | None:
        if not self._has_lost:
            return None
        return min((since_ms + patience_ms for _, since_ms in self._lost()), default=None)

    def _lost(self) -> list[tuple[SessionId, int]]:
        return [(one, a.lost_ms) for one, a in self._open.items() if a.lost_ms is not None]
