"""How what nodes want of the catalog gets to its leader, into the log, and back as an answer."""

from __future__ import annotations

from mirrorq.cluster.catalog.proposals import pack
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.cluster.controller.events import ControllerTick
from mirrorq.engine.catalog_requests import NOBODY, CatalogRequests, PendingRequest
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.events import Answer
from mirrorq.engine.leadership import Leadership
from mirrorq.protocol.commands import (
    CatalogCommand,
    DeclareQueue,
    DeclareShards,
    DeleteQueue,
    NodeStopped,
    RegisterNode,
)
from mirrorq.protocol.control import (
    CatalogAnswer,
    CatalogRequest,
    LeaseRelease,
    LeaseRequest,
    Yielded,
)
from mirrorq.protocol.identities import StoreId


class LeaderRequests:
    """What one node asks the catalog's leader, and what it is asked as that. The engine has it.

    Args:
        context: what the engine's parts share.
        requests: what this node has asked and has no answer to.
        registration: how this node takes part.
    """

    def __init__(
        self,
        context: EngineContext,
        requests: CatalogRequests,
        consensus: Consensus,
        leadership: Leadership,
        registration: RegisterNode,
    ) -> None:
        self._context = context
        self._requests = requests
        self._consensus = consensus
        self._leadership = leadership
        self._registration = registration

    # --- Asking ---------------------------------------------------------------------------

    def begin(self, token: int, command: CatalogCommand) -> None:
        """What a user of this node wants of the catalog."""
        self._requests.add(token, command)
        if isinstance(command, DeclareQueue) and command.owner is not None:
            self._context.hosting.sessions.own(command.owner)

    def forget(self, token: int) -> None:
        """The user does not wait any more."""
        for ask in self._requests.take_all(token):
            self._end(ask, "forgotten")

    def stop(self) -> None:
        """The node is about to end: that is a shutdown, and no failure."""
        if self._context.is_registered:
            me = self._context.me
            self._requests.wish(NodeStopped(me.node, me.store, me.incarnation))

    def go_on(self, now_ms: int) -> None:
        """A step in which there is something that has no outcome, or this node is no member."""
        if self._requests.has_endings:
            self.tell_endings(now_ms)
        if self._requests or not self._context.was_registered:
            self.send(now_ms)

    def send(self, now_ms: int) -> None:
        """Send catalog requests to the leader, and again when nothing came of them."""
        raft, context = self._consensus.raft, self._context
        if (
            not context.was_registered
            and raft.is_founded
            and not context.is_registered
            and not self._requests.is_open(RegisterNode)
        ):
            self._requests.wish(self._registration)
        if not self._requests or raft.leader is None:
            return
        oldest = self._requests.oldest
        for ask in self._requests.due(now_ms):
            self.to_leader(now_ms, CatalogRequest(ask.number, context.me, ask.command, oldest))

    def send_promises(self, now_ms: int) -> None:
        """Tell the leader which masters here have yielded."""
        hosting = self._context.hosting
        promises, hosting.promises = hosting.promises, []
        for promise in promises:
            self.to_leader(now_ms, promise)

    def to_leader(
        self, now_ms: int, message: CatalogRequest | LeaseRequest | LeaseRelease | Yielded
    ) -> None:
        """Send something to the leader, which may be this node; without one it is dropped."""
        leader = self._consensus.raft.leader
        if leader is None:
            return
        if leader != self._context.store:
            self._context.out.send.append((leader.node, message))
        elif isinstance(message, CatalogRequest):
            self.on_request(now_ms, message)
        else:
            self._leadership.supervise(now_ms, message)

    # --- Being asked ----------------------------------------------------------------------

    def on_request(self, now_ms: int, request: CatalogRequest) -> None:
        """A node asks this one, which may lead."""
        command = self._leadership.admit(request)
        if isinstance(command, DeclareQueue | DeclareShards) and self._is_assembling():
            command = CatalogAnswer(request.number, 0, retry=True)
        if not isinstance(command, CatalogAnswer):
            data = pack(request.member, request.number, command, request.oldest)
            self._consensus.log(now_ms, data)
        elif request.member == self._context.me:
            self.on_answer(command)
        else:
            self._context.out.send.append((request.member.node, command))
        # What the leader is asked for may need a judgement first.
        self._leadership.supervise(now_ms, ControllerTick())

    def _is_assembling(self) -> bool:
        """Whether a voter that runs is about to register: a first view should have it."""
        context = self._context
        for peer in context.admission.peers.all():
            member = peer.member
            if peer.gone or member is None:
                continue
            record = context.catalog.node(member.node)
            is_known = record is not None and record.member == member
            if not is_known and StoreId(member.node, member.store) in self._consensus.raft.voters:
                return True
        return not context.is_registered

    # --- Answers --------------------------------------------------------------------------

    def on_answer(self, answer: CatalogAnswer) -> None:
        """A refusal; what was done is seen when the command is applied here."""
        if answer.retry:
            self._requests.retry(answer.number)
            return
        if answer.error and self._requests.is_about(answer.number, RegisterNode):
            # It is asked again after a while, as that of any request that had no answer.
            self._context.admission.on_unwelcome(answer.text)
            return
        ask = self._requests.take(answer.number)
        if ask is not None:
            self._answer(ask, Answer(ask.token, answer.value, answer.error, answer.text))

    def on_applied(
        self, now_ms: int, number: int, command: CatalogCommand, result: CatalogResult
    ) -> None:
        """What this node has asked under this number was applied here."""
        ask = self._requests.take(number)
        if ask is None:
            return
        answer = Answer(ask.token, result.value, result.error, result.text)
        if isinstance(command, DeleteQueue) and ask.token != NOBODY and not result.error:
            # As a rule its outbox is empty in a moment, and its name free when that is told.
            if self._context.catalog.is_ending(command.queue_id):
                until_ms = now_ms + self._context.config.failure_ms
                self._requests.await_end(command.queue_id, until_ms, ask, answer)
                return
        self._answer(ask, answer)

    def tell_endings(self, now_ms: int) -> None:
        """Answer deletions whose queues are gone by now, or take long."""
        for ask, answer in self._requests.ended(now_ms, self._context.catalog.is_deleted):
            self._answer(ask, answer)

    def _answer(self, ask: PendingRequest, answer: Answer) -> None:
        self._end(ask, answer.error)
        if ask.token != NOBODY:
            self._context.out.answers.append(answer)

    def _end(self, ask: PendingRequest, error: str) -> None:
        """Who declared an exclusive queue and got none owns none."""
        command = ask.command
        if error and isinstance(command, DeclareQueue) and command.owner is not None:
            self._context.hosting.end_owner(command.owner)
