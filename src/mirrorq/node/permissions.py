"""What a client's requests need, and whether its key allows it. Pure.

Every request of a client that is no admin is asked about here, by the node through which it came
in, before anything is done with it. Rights are by name; what a request names by id is looked up in
the catalog of that node. An id that this has not heard of yet is judged once it has (`is_known`).
Of a queue that was deleted nothing is left to protect, and nothing is refused.

Who may write an exchange may write the queues that are bound to it: a client finds out by itself
which queues a message reaches, and publishes to each. Therefore to bind a queue needs the right to
write that queue.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import define, field

from mirrorq.cluster.catalog.core import Catalog
from mirrorq.errors import PolicyError, ProtocolError
from mirrorq.protocol.clients import (
    ClientAdminister,
    ClientCall,
    ClientDeclare,
    ClientDelete,
    ClientDisconnect,
    ClientLook,
    ClientRead,
    ClientSeek,
    ClientWatch,
)
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import Bind, DeclareExchange, DeleteExchange, Unbind
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP, Step
from mirrorq.protocol.policy import arguments_of
from mirrorq.protocol.sessions import (
    AckRange,
    Browse,
    Credit,
    Extend,
    OpenProducer,
    Pause,
    Publish,
    Purge,
    Recalled,
    Request,
    Settle,
    Subscribe,
    Unsubscribe,
)
from mirrorq.protocol.shard_names import logical_name
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp
from mirrorq.security.roles import Key, Right, refusal

READING = (Subscribe, Unsubscribe, Credit, Settle, Extend, Browse, Purge, Pause, AckRange, Recalled)
"""Requests that take messages, or look at them."""
_Needs = tuple[tuple[Right, int], ...]
"""What is needed: (right, id of the queue)."""


def lost_right(
    before: Permits | None, after: Permits | None, queue_id: int, used: Collection[Right]
) -> str:
    """Why a session cannot go on with what it does to a queue, "" when it has lost nothing of it.

    Args:
        used: the rights that the session has needed so far.
    """
    if after is None:
        return ""
    was_refused = {} if before is None else before.refusals(queue_id)
    refused = after.refusals(queue_id)
    lost = [right for right in refused if right not in was_refused]
    if len(refused) == len(Right) and lost:
        return next((refused[right] for right in lost if right in used), refused[lost[0]])
    return next((refused[right] for right in lost if right in used), "")


@define(eq=False)
class Permits:
    """What one key allows on one node, as its catalog and the key are now."""

    key: Key
    catalog: Catalog
    codec: OpCodec
    _known: dict[tuple[Right, int], str] = field(factory=dict)
    _index: int = 0
    """Of the catalog, when the answers were found."""

    def refusal_of_call(self, call: ClientCall) -> str:
        """Why it is refused, "" when it is not."""
        match call.call:
            case ClientDeclare() as declare:
                wrong = self._dead_refusal(declare)
                if wrong:
                    return wrong
                if declare.passive or self._id_of(declare.name):
                    return self._unknown(logical_name(declare.name))
                wrong = refusal(self.key, Right.CONFIGURE, declare.name)
                return wrong or self._too_many(declare)
            case ClientDelete() as delete:
                return self.refusal(Right.CONFIGURE, delete.queue)
            case ClientRead() | ClientSeek() as reading:
                return self.refusal(Right.READ, reading.queue)
            case ClientWatch() as watch:
                return self._unknown(watch.exchange, "exchange")
            case ClientLook() as look:
                if look.what == "status":
                    return "" if self.sees(look.queue) else self._unknown_id(look.queue)
                # Of queues it is shown those that it knows.
                is_of_queues = look.what in ("queues", "shards")
                what = "clients and consumers" if look.what == "attendance" else look.what
                return "" if is_of_queues else self._not_admin(f"see the {what}")
            case ClientDisconnect():
                return self._not_admin("disconnect clients")
            case ClientAdminister() as administer:
                return self._refusal_of_command(administer)
        return self._not_admin("ask for this")

    def _refusal_of_command(self, administer: ClientAdminister) -> str:
        match administer.command:
            case DeclareExchange() | DeleteExchange() as command:
                return refusal(self.key, Right.CONFIGURE, command.name, "exchange")
            case Bind() | Unbind() as command:
                wrong = refusal(self.key, Right.CONFIGURE, command.exchange, "exchange")
                if wrong or isinstance(command, Unbind):
                    return wrong
                return refusal(self.key, Right.WRITE, command.queue)
        return self._not_admin(f"do {type(administer.command).__name__}")

    def _too_many(self, declare: ClientDeclare) -> str:
        """Why it may make no queue more, "" when it may."""
        most = self.key.queues
        if most is None:
            return ""
        count = sum(self.may_declare(self.catalog.name_of(one.id)) for one in self.catalog.queues())
        if count + max(declare.shards, 1) <= most:
            return ""
        wanted = f"{declare.shards} shards are" if declare.shards else "one is"
        return (
            f"key {self.key.name!r} may not make queue {declare.name!r}: there are {count} queues "
            f"that match its patterns for configure, {wanted} wanted, and it may have {most}: "
            "delete some, or give it more"
        )

    def _dead_refusal(self, declare: ClientDeclare) -> str:
        """Why it may not have what ends in its queue go to another, "" when it may: what it puts
        here comes there."""
        try:
            target = arguments_of(declare.arguments).get("dead-letter-queue")
        except PolicyError as error:
            return str(error)
        return "" if target is None else refusal(self.key, Right.WRITE, target)

    def may_declare(self, name: str) -> bool:
        """Whether it may make the queue; else only one that exists is given to it."""
        return self.key.allows(Right.CONFIGURE, name)

    def refusal_of_request(self, queue_id: int, request: Request) -> str:
        """Why a request to a queue's master is refused, "" when it is not."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError as error:
            return str(error)
        for right, needed_id in needs:
            wrong = self.refusal(right, needed_id)
            if wrong:
                return wrong
        return "" if needs or self.sees(queue_id) else self._unknown_id(queue_id)

    def lacking(self, queue_id: int, request: Request) -> Right | None:
        """The right to this queue that a request lacks; None when it lacks another one, or more."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError:
            return None
        refused = [need for need in needs if self.refusal(*need)]
        return refused[0][0] if len(refused) == 1 and refused[0][1] == queue_id else None

    def _needs(self, queue_id: int, request: Request) -> _Needs:
        if isinstance(request, Publish):
            return self._needs_of_publish(queue_id, request)
        if isinstance(request, OpenProducer):
            # By itself it does nothing; who puts elsewhere what is acked here needs an id, too.
            return ()
        if isinstance(request, Settle) and request.kind == "move":
            return ((Right.READ, queue_id), (Right.WRITE, request.target))
        if isinstance(request, Purge) and request.target:
            return ((Right.READ, queue_id), (Right.WRITE, request.target))
        return ((Right.READ, queue_id),) if isinstance(request, READING) else ()

    def _needs_of_publish(self, queue_id: int, publish: Publish) -> _Needs:
        flags = self.codec.header(publish.frame).flags
        reads: _Needs = ((Right.READ, queue_id),) if publish.deliveries else ()
        if flags & FLAG_STAGED:
            asked = self.codec.staged(publish.frame)
            others: tuple[int, ...] = ()
            if isinstance(asked, CommitOp | AbortOp):
                others = asked.others
            elif isinstance(asked, SealOp):
                others = (asked.home,)
            elif isinstance(asked, AskOp):
                others = (asked.asker,)
            return (*reads, *((Right.WRITE, each) for each in (queue_id, *others)))
        if flags & FLAG_STEP:
            step = self.codec.step(publish.frame)
            reads = ((Right.READ, queue_id),)
            if isinstance(step, Step) and step.target:
                return (*reads, (Right.WRITE, step.target))
            if self.codec.header(publish.frame).count == 1:
                return reads  # It acks, and puts nothing.
        return (*reads, (Right.WRITE, queue_id))

    def is_known(self, queue_id: int) -> bool:
        """Whether this node knows the queue, or that it was deleted; else it may be to come."""
        return bool(self.catalog.name_of(queue_id)) or self.catalog.is_deleted(queue_id)

    def are_known(self, queue_id: int, request: Request) -> bool:
        """Whether this node knows every queue that a request is about."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError:
            return True  # It is refused.
        return all(self.is_known(one) for _, one in needs)

    def sees(self, queue_id: int) -> bool:
        """Whether it may do anything to this queue."""
        return any(not self.refusal(right, queue_id) for right in Right)

    def refusals(self, queue_id: int) -> dict[str, str]:
        """What it may not do to a queue: right -> why."""
        found = {right.value: self.refusal(right, queue_id) for right in Right}
        return {right: why for right, why in found.items() if why}

    def refusal(self, right: Right, queue_id: int) -> str:
        """Why it may not do this to a queue, "" when it may."""
        if self._index != self.catalog.applied_index:
            self._index = self.catalog.applied_index
            self._known.clear()
        why = self._known.get((right, queue_id))
        if why is None:
            why = self._known[right, queue_id] = self._refusal_now(right, queue_id)
        return why

    def _refusal_now(self, right: Right, queue_id: int) -> str:
        name = self.catalog.name_of(queue_id)
        if not name:
            is_gone = self.catalog.is_deleted(queue_id)
            return "" if is_gone else f"no queue has the id {queue_id} yet"
        if right is Right.WRITE and self._writes_through_exchange(queue_id):
            return ""
        return refusal(self.key, right, name)

    def _id_of(self, name: str) -> int:
        """Of a queue, sharded or not, by its name; 0: there is none."""
        known = self.catalog.queue_named(name) or self.catalog.sharded_named(name)
        return 0 if known is None else known.id

    def _writes_through_exchange(self, queue_id: int) -> bool:
        home = self.catalog.home_of(queue_id)
        bound = (queue_id,) if home is None else (queue_id, home.id)
        return any(
            self.key.allows(Right.WRITE, exchange.name)
            and any(binding.queue_id in bound for binding in exchange.bindings)
            for exchange in self.catalog.exchanges()
        )

    def _unknown_id(self, queue_id: int) -> str:
        name = self.catalog.name_of(queue_id)
        return self._unknown(name) if name else self.refusal(Right.READ, queue_id)

    def _unknown(self, name: str, what: str = "queue") -> str:
        """Why it may not even know of it, "" when it may."""
        known = self._id_of(name) if what == "queue" else 0
        if self.key.knows(name) or (known and self.sees(known)):
            return ""
        return (
            f"key {self.key.name!r} may not write, read or configure {what} {name!r}: give it a "
            "pattern that matches, or use another key"
        )

    def _not_admin(self, what: str) -> str:
        return (
            f"key {self.key.name!r} may not {what}: it is a client's, and this needs the role "
            "admin. Use an admin's key"
        )
