"""The sessions of one client: requests in, replies and news of masters out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import define, field
from msgspec.structs import replace

from mirrorq.cluster.catalog.records import exclusive_text
from mirrorq.engine.events import FromSession, SessionClosed
from mirrorq.node.gateway.credit import ClientSubscription
from mirrorq.node.permissions import READING, Permits, lost_right
from mirrorq.protocol import clients
from mirrorq.protocol.commands import DeleteQueue
from mirrorq.protocol.identities import SessionId, client_handle
from mirrorq.protocol.sessions import (
    Attach,
    ConsumerRefused,
    Credit,
    Deliver,
    Detach,
    Detached,
    Publish,
    Request,
    SessionReply,
    SessionRequest,
    Subscribe,
    Unsubscribe,
)
from mirrorq.security.roles import Right
from mirrorq.session.calls import Closed, LinkLost, MasterChanged, ReplyArrived, SessionEvent

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.records import QueueRecord
    from mirrorq.node.driver import Driver
    from mirrorq.node.gateway.link import ClientLink

log = logging.getLogger("mirrorq")

SESSIONS_MAX = 4096
"""Limit on handles of one client."""
SUBSCRIPTIONS_MAX = 1024
"""Limit on consumers of one handle."""


@define(eq=False)
class ClientSession:
    """One session of a client: a port of the driver that passes events on."""

    sessions: ClientSessions
    number: int
    """The client's number of the session."""
    session: SessionId
    """The session's id on the entry node."""
    queue_id: int
    epoch: int = 0
    attachment: int = 0
    requests: int = 0
    """The client's number of the last request that was passed on."""
    sent: int = 0
    """The last request's number towards the master: credits are delayed, merged and repeated."""
    used: dict[Right, None] = field(factory=dict)
    """Rights that the session's requests have needed."""
    subscriptions: dict[int, ClientSubscription] = field(factory=dict)
    """Consumers of the current attachment."""

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        for event in events:
            self.sessions.on_event(self, event)
        return (), None

    def is_next(self, request: SessionRequest) -> bool:
        """Return true if a request directly follows the last request. A gap caused by the entry
        node would make the master refuse the added Detach."""
        if request.attachment == self.attachment:
            return request.number == self.requests + 1
        return request.attachment > self.attachment and request.number == 1

    def shows_gap(self, request: SessionRequest) -> bool:
        """Return true if requests before the given request are missing; else it is a repeat."""
        if request.attachment == self.attachment:
            return request.number > self.requests + 1
        return request.attachment > self.attachment

    def add_request(self, request: SessionRequest) -> None:
        """Note the client's next request."""
        if request.attachment != self.attachment:
            self.sent = 0
            self.subscriptions.clear()
        self.epoch, self.attachment = request.epoch, request.attachment
        self.requests = request.number

    def in_own_name(self, request: Request) -> SessionRequest:
        """Return a request under the session's id and number on the entry node."""
        self.sent += 1
        return SessionRequest(
            self.queue_id, self.epoch, self.session, self.attachment, self.sent, request
        )


class ClientSessions:
    """Sessions of one client, by the client's own numbers.

    Args:
        link: where replies go.
        driver: steps the sessions and takes their requests.
    """

    def __init__(self, link: ClientLink, driver: Driver) -> None:
        self._link = link
        self._driver = driver
        self._open: dict[int, ClientSession] = {}
        self._owners: dict[int, SessionId] = {}
        """Sessions that own an exclusive queue or are about to."""
        self._early: dict[int, int] = {}
        """Sessions on queues that the node does not know yet."""

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self._open.values())

    # --- Coming and going -----------------------------------------------------------------

    def open(self, message: clients.ClientOpen) -> None:
        """Open a session for a new handle of the client."""
        number, queue_id = message.session, message.queue
        if number in self._open or number in self._early:
            self._warn("client %s opened session %s twice", self._link.name, number)
            return
        if len(self._open) + len(self._early) >= SESSIONS_MAX:
            reason = f"a client has at most {SESSIONS_MAX} handles: close some"
            self._link.send(clients.ClientClosed(number, reason))
            return
        if self._may_judge(queue_id):
            self._open_known(number, queue_id)
        else:
            self._await_known(number, queue_id)

    def _may_judge(self, queue_id: int) -> bool:
        """Return true if the node can judge the client's rights to a queue: the node has applied
        the catalog up to its own start, and knows the queue."""
        permits = self._link.permits
        return permits is None or (self._driver.engine.is_registered and permits.is_known(queue_id))

    def _await_known(self, number: int, queue_id: int) -> None:
        self._early[number] = queue_id

        def begin(_: bool) -> None:
            self._early.pop(number, None)
            self._open_known(number, queue_id)

        self._driver.waits.add(
            self._early_key(number),
            lambda: self._may_judge(queue_id) or None,
            begin,
            on_catalog=True,
        )

    def _early_key(self, number: int) -> tuple[bytes, str, int]:
        return self._link.identity, "session", number

    def _forget_early(self, number: int) -> None:
        if self._early.pop(number, None) is not None:
            self._driver.waits.remove(self._early_key(number))

    def _open_known(self, number: int, queue_id: int) -> None:
        catalog, permits = self._driver.engine.catalog, self._link.permits
        if catalog.is_deleted(queue_id):
            self._link.send(clients.ClientClosed(number, "the queue was deleted"))
            return
        if permits is not None and not permits.sees(queue_id):
            why = permits.refusal(Right.READ, queue_id)
            self._link.send(clients.ClientClosed(number, why, refused=True))
            return
        session_id = self._owners.get(number) or self._driver.new_session()
        record = self._foreign(queue_id, session_id)
        mine = client_handle(self._link.connection, number)
        if record is not None and record.client_handle == mine:
            self._end_left(number, record)
            return
        session = self._open[number] = ClientSession(self, number, session_id, queue_id)
        self._driver.open_port(session_id, queue_id, session)

    def _end_left(self, number: int, record: QueueRecord) -> None:
        """End an exclusive queue whose owner opens the queue on another connection."""
        log.info("client %s has left its exclusive queue %r", self._link.name, record.name)
        self._driver.ask(DeleteQueue(record.id), lambda _: None)
        reason = (
            f"the connection to node {record.view.members[0].id.node} ended, and with it the "
            "exclusive queue: declare it again"
        )
        self._link.send(clients.ClientClosed(number, reason))

    def _foreign(self, queue_id: int, session: SessionId) -> QueueRecord | None:
        """Return the queue if another handle owns it exclusively: the session may only publish."""
        record = self._driver.engine.catalog.queue(queue_id)
        is_foreign = record is not None and record.exclusive and record.owner != session
        return record if is_foreign else None

    def owner(self, number: int) -> SessionId:
        """Return the session that will own an exclusive queue: its id on the entry node."""
        known = self._owners.get(number)
        if known is None:
            known = self._owners[number] = self._driver.new_session()
        return known

    def close(self, number: int, *, goes_on: bool = False) -> None:
        """Close a handle of the client, also after a failed exclusive declaration.

        Args:
            goes_on: the handle goes on at another node.
        """
        self._forget_early(number)
        session = self._open.pop(number, None)
        if session is not None:
            self._end(session, is_lost=goes_on)
        self._end_owner(number)

    def end_all(self, *, is_lost: bool) -> None:
        """End all sessions: the client is gone.

        Args:
            is_lost: the client did not say goodbye, and may come back.
        """
        for number in list(self._early):
            self._forget_early(number)
        for session in self._open.values():
            self._end(session, is_lost=is_lost)
        for number in list(self._owners):
            self._end_owner(number)

    def permit(self, permits: Permits | None) -> None:
        """Apply changed rights of the client's key: sessions lose withdrawn rights in use."""
        before, self._link.permits = self._link.permits, permits
        for session in list(self._open.values()):
            why = lost_right(before, permits, session.queue_id, session.used)
            if why and permits is not None:
                lost = [one for one in session.used if permits.refusal(one, session.queue_id)]
                self._refuse(session, why, lost[0] if len(lost) == 1 else None)

    def _refuse(self, session: ClientSession, why: str, right: Right | None) -> None:
        """Refuse an action that the key does not allow.

        Args:
            right: the missing right to the session's queue; the session keeps the other right if
                the key allows it. None: the session ends.
        """
        permits = self._link.permits
        assert permits is not None
        other = Right.WRITE if right is Right.READ else Right.READ
        if right is not None and not permits.refusal(other, session.queue_id):
            self._withdraw(session, right, why)
            return
        self._warn("ended a session of client %s: %s", self._link.name, why)
        self.close(session.number)
        self._link.send(clients.ClientClosed(session.number, why, refused=True))

    def _withdraw(self, session: ClientSession, right: Right, why: str) -> None:
        """Take one right from a session, which keeps the other right."""
        self._warn("client %s has lost a right: %s", self._link.name, why)
        session.used.pop(right, None)
        if right is Right.READ:
            session.subscriptions.clear()
            if session.attachment:
                # Held messages are released at once; the client attaches again to publish.
                self._driver.post(FromSession(session.in_own_name(Detach(is_lost=True))))
        self._link.send(clients.ClientRightLost(session.number, right.value, why))

    def _end(self, session: ClientSession, *, is_lost: bool = False) -> None:
        if session.attachment:
            self._driver.post(FromSession(session.in_own_name(Detach(is_lost))))
        self._driver.close_port(session.session)

    def _end_owner(self, number: int) -> None:
        """End a closed session's exclusive queue."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            self._driver.post(SessionClosed(owner, 0))

    # --- From the client ------------------------------------------------------------------

    def on_request(self, request: SessionRequest) -> None:
        """Pass a request on to the queue's master."""
        session = self._open.get(request.session.number)
        if session is None:
            # Mostly a request that was on the way when its session ended.
            log.debug("client %s: request of no session", self._link.name)
            return
        if session.queue_id != request.queue_id:
            self._warn(
                "dropped a request of client %s to queue %s: its session is on %s",
                self._link.name,
                request.queue_id,
                session.queue_id,
            )
            return
        if session.is_next(request):
            if self._is_early(session, request):
                self._send_detached(request)
            else:
                self._pass_request(session, request)
        elif session.shows_gap(request):
            self._send_detached(request)

    def _is_early(self, session: ClientSession, request: SessionRequest) -> bool:
        """Return true if a request names a queue that the node does not know yet."""
        permits = self._link.permits
        return permits is not None and not permits.are_known(session.queue_id, request.request)

    def _pass_request(self, session: ClientSession, request: SessionRequest) -> None:
        session.add_request(request)
        body, permits = request.request, self._link.permits
        if permits is not None:
            why = permits.refusal_of_request(session.queue_id, body)
            if why:
                self._refuse(session, why, permits.lacking(session.queue_id, body))
                return
        if isinstance(body, Publish):
            session.used[Right.WRITE] = None
        if isinstance(body, READING) or (isinstance(body, Publish) and body.deliveries):
            session.used[Right.READ] = None
            record = self._foreign(session.queue_id, session.session)
            if record is not None:
                self.close(session.number)
                self._link.send(clients.ClientClosed(session.number, exclusive_text(record)))
                return
        if isinstance(body, Attach):
            body = replace(body, owner=self._link.key, connection=self._link.connection)
        if isinstance(body, Credit):
            subscription = session.subscriptions.get(body.number)
            if subscription is not None and not body.total:
                self._driver.post(FromSession(session.in_own_name(subscription.halt())))
            elif subscription is not None:
                subscription.total = max(subscription.total, body.total)
                self._pass_credits(session)
            return
        if isinstance(body, Unsubscribe):
            session.subscriptions.pop(body.number, None)
        elif isinstance(body, Subscribe) and body.number not in session.subscriptions:
            if len(session.subscriptions) >= SUBSCRIPTIONS_MAX:
                self._warn("dropped consumer %s of client %s", body.number, self._link.name)
                return
            session.subscriptions[body.number] = ClientSubscription(body.number)
        self._driver.post(FromSession(session.in_own_name(body)))

    def _send_detached(self, request: SessionRequest) -> None:
        """Have the session attach again: a request of its attachment was lost or dropped."""
        own, attachment = SessionId(self._link.name, 0, request.session.number), request.attachment
        self._link.send(
            SessionReply(request.queue_id, request.epoch, own, attachment, 0, Detached())
        )

    # --- Credit ---------------------------------------------------------------------------

    def pass_credits(self) -> None:
        """Pass credits on: there may be more room on the way to the client."""
        for session in self._open.values():
            self._pass_credits(session)

    def _pass_credits(self, session: ClientSession) -> None:
        """Send Credits for the room that there is on the way to the client."""
        due = [each for each in session.subscriptions.values() if each.is_due]
        window = self._link.window
        room = window.size - window.on_way
        if not due or room <= 0:
            return
        sharing = sum(len(other.subscriptions) for other in self._open.values())
        for each in due:
            self._driver.post(FromSession(session.in_own_name(each.credit(room, sharing))))

    # --- To the client --------------------------------------------------------------------

    def on_event(self, session: ClientSession, event: SessionEvent) -> None:
        """Pass an event of the driver on to the client."""
        number = session.number
        match event:
            case ReplyArrived():
                self._pass_reply(session, event.reply)
            case MasterChanged():
                straight = self._straight(session.queue_id) if event.available else ""
                self._link.send(
                    clients.ClientMaster(number, event.epoch, event.available, straight)
                )
            case LinkLost():
                self._link.send(clients.ClientLinkLost(number))
            case Closed():
                # A closing node sends the same; its clients go on at another node.
                if self._driver.engine.catalog.is_deleted(session.queue_id):
                    self._on_deleted(session, event.reason)

    def _straight(self, queue_id: int) -> str:
        """Return the endpoint of the node that is a queue's master, "" for this node."""
        engine = self._driver.engine
        record = engine.catalog.queue(queue_id)
        master = engine.me.node if record is None else record.view.members[0].id.node
        node = None if master == engine.me.node else engine.catalog.node(master)
        return "" if node is None else node.endpoint

    def _pass_reply(self, session: ClientSession, reply: SessionReply) -> None:
        own = SessionId(self._link.name, 0, session.number)
        self._link.send(
            SessionReply(
                reply.queue_id, reply.epoch, own, reply.attachment, reply.number, reply.reply
            )
        )
        body = reply.reply
        if reply.attachment != session.attachment:
            return
        if isinstance(body, ConsumerRefused):
            # A later Subscribe with the number begins without credit, at the master too.
            session.subscriptions.pop(body.number, None)
        elif isinstance(body, Deliver):
            subscription = session.subscriptions.get(body.consumer)
            if subscription is not None:
                subscription.on_deliver(body)
                self._pass_credits(session)

    def _on_deleted(self, session: ClientSession, reason: str) -> None:
        if self._open.pop(session.number, None) is not None:
            self._driver.close_port(session.session)
        self._link.send(clients.ClientClosed(session.number, reason))

    def _warn(self, text: str, *values: object) -> None:
        """Log a fault of the client, rate-limited."""
        self._driver.complaints.warn(text, *values)
