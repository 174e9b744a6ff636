"""The way of a catalog request: to the leader, into the log, and back as an answer."""

from __future__ import annotations

from mirrorq.cluster.catalog.proposals import pack
from mirrorq.cluster.catalog.records import CatalogResult
from mirrorq.cluster.raft.messages import COMMAND_BYTES_MAX
from mirrorq.engine.catalog_requests import NOBODY, CatalogRequests, PendingRequest
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.events import Answer
from mirrorq.engine.leadership import Leadership
from mirrorq.protocol import commands, control
from mirrorq.protocol.identities import StoreId


class LeaderRequests:
    """Sends catalog requests, and answers requests as leader. The engine owns the object.

    Args:
        context: shared by the engine's parts.
        requests: open requests of the node.
        registration: the command that registers the node.
    """

    def __init__(
        self,
        context: EngineContext,
        requests: CatalogRequests,
        consensus: Consensus,
        leadership: Leadership,
        registration: commands.RegisterNode,
    ) -> None:
        self._context = context
        self._requests = requests
        self._consensus = consensus
        self._leadership = leadership
        self._registration = registration

    # --- Asking ---------------------------------------------------------------------------

    def begin_request(self, token: int, command: commands.CatalogCommand) -> None:
        """Begin a catalog request of a user of the node."""
        self._requests.add(token, command)
        if isinstance(command, commands.DeclareQueue) and command.owner is not None:
            self._context.hosting.sessions.own(command.owner)

    def forget(self, token: int) -> None:
        """End the requests of a user who has stopped waiting."""
        for ask in self._requests.take_all(token):
            self._end(ask, "forgotten")

    def stop(self) -> None:
        """Announce the end of the node as a shutdown, not a failure."""
        if self._context.is_registered:
            me = self._context.me
            self._requests.wish(commands.NodeStopped(me.node, me.store, me.incarnation))

    def continue_requests(self, now_ms: int) -> None:
        """Continue open requests and deletions, or the node's registration."""
        if self._requests.has_endings:
            self.tell_endings(now_ms)
        if self._requests or not self._context.was_registered:
            self.send(now_ms)

    def send(self, now_ms: int) -> None:
        """Send catalog requests to the leader; repeat requests without an outcome."""
        raft, context = self._consensus.raft, self._context
        if (
            not context.was_registered
            and raft.is_founded
            and not context.is_registered
            and not self._requests.is_open(commands.RegisterNode)
        ):
            self._requests.wish(self._registration)
        if not self._requests or raft.leader is None:
            return
        oldest = self._requests.oldest
        for ask in self._requests.due(now_ms):
            self.to_leader(
                now_ms, control.CatalogRequest(ask.number, context.me, ask.command, oldest)
            )

    def send_promises(self, now_ms: int) -> None:
        """Tell the leader which masters here have yielded."""
        hosting = self._context.hosting
        promises, hosting.promises = hosting.promises, []
        for promise in promises:
            self.to_leader(now_ms, promise)

    def to_leader(
        self,
        now_ms: int,
        message: control.CatalogRequest
        | control.LeaseRequest
        | control.LeaseRelease
        | control.Yielded,
    ) -> None:
        """Send a message to the leader, possibly the node itself; without a leader, drop it."""
        leader = self._consensus.raft.leader
        if leader is None:
            return
        if leader != self._context.store:
            self._context.out.send.append((leader.node, message))
        elif isinstance(message, control.CatalogRequest):
            self.on_request(now_ms, message)
        else:
            self._leadership.supervise(now_ms, message)

    # --- Being asked ----------------------------------------------------------------------

    def on_request(self, now_ms: int, request: control.CatalogRequest) -> None:
        """Handle a catalog request of a node, in the role of a possible leader."""
        command = self._leadership.admit(request)
        if (
            isinstance(command, commands.DeclareQueue | commands.DeclareShards)
            and self._is_assembling()
        ):
            command = control.CatalogAnswer(request.number, 0, retry=True)
        answer = (
            command
            if isinstance(command, control.CatalogAnswer)
            else self._log(now_ms, request, command)
        )
        if answer is not None and request.member == self._context.me:
            self.on_answer(answer)
        elif answer is not None:
            self._context.out.send.append((request.member.node, answer))
        # The controller may have to judge the request first: once for all requests of a step.
        self._leadership.tick.set_by(now_ms)

    def _log(
        self, now_ms: int, request: control.CatalogRequest, command: commands.CatalogCommand
    ) -> control.CatalogAnswer | None:
        """Put a command into Raft's log, or refuse a command that is too large for the log."""
        data = pack(request.member, request.number, command, request.oldest)
        if len(data) <= COMMAND_BYTES_MAX:
            self._consensus.log(now_ms, data)
            return None
        text = (
            f"{type(command).__name__} takes {len(data)} bytes in the catalog's log, and a command "
            f"at most {COMMAND_BYTES_MAX}: divide it, or shorten its lists and names"
        )
        return control.CatalogAnswer(request.number, 0, "PreconditionFailed", text)

    def _is_assembling(self) -> bool:
        """Return true if a running voter is about to register: a first view should have it."""
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

    def on_answer(self, answer: control.CatalogAnswer) -> None:
        """Handle a refusal. Success is seen when the command is applied here."""
        if answer.retry:
            self._requests.retry(answer.number)
            return
        if answer.error and self._requests.is_about(answer.number, commands.RegisterNode):
            # The registration is repeated later, as any request without an answer.
            self._context.admission.on_unwelcome(answer.text)
            return
        ask = self._requests.finish(answer.number)
        if ask is not None:
            self._answer(ask, Answer(ask.token, answer.value, answer.error, answer.text))

    def on_applied(
        self, now_ms: int, number: int, command: commands.CatalogCommand, result: CatalogResult
    ) -> None:
        """End a request of the node whose command was applied here."""
        ask = self._requests.finish(number)
        if ask is None:
            return
        answer = Answer(ask.token, result.value, result.error, result.text)
        if isinstance(command, commands.DeleteQueue) and ask.token != NOBODY and not result.error:
            # Mostly the outbox empties at once; the answer then means that the name is free.
            if self._context.catalog.is_ending(command.queue_id):
                until_ms = now_ms + self._context.config.failure_ms
                self._requests.await_end(command.queue_id, until_ms, ask, answer)
                return
        self._answer(ask, answer)

    def tell_endings(self, now_ms: int) -> None:
        """Answer deletions whose queues are gone, or whose deadline has passed."""
        for ask, answer in self._requests.ended(now_ms, self._context.catalog.is_deleted):
            self._answer(ask, answer)

    def _answer(self, ask: PendingRequest, answer: Answer) -> None:
        self._end(ask, answer.error)
        if ask.token != NOBODY:
            self._context.out.answers.append(answer)

    def _end(self, ask: PendingRequest, error: str) -> None:
        """End a request. If a declaration fails, the handle owns no exclusive queue."""
        command = ask.command
        if error and isinstance(command, commands.DeclareQueue) and command.owner is not None:
            self._context.hosting.end_owner(command.owner)
