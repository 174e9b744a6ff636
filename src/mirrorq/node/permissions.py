"""The rights that a client's requests need, and if a key allows them. Pure.

The entry node checks every request of a client without the admin role here, before the request has
any effect. Rights are by name; an id in a request is looked up in the node's catalog. An id that
the node does not know yet is judged later (`is_known`). A deleted queue needs no protection, so
nothing is refused.

A client that may write an exchange may write the queues that are bound to it: the client itself
finds the queues of a message and publishes to each. Therefore binding a queue needs the right to
write that queue.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import define, field

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.errors import PolicyError, ProtocolError
from mirrorq.protocol import clients, sessions
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import Bind, DeclareExchange, DeleteExchange, Unbind
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP, Step
from mirrorq.protocol.policy import arguments_of
from mirrorq.protocol.shard_names import logical_name
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp
from mirrorq.security.roles import Key, Right, refusal

READING = (
    sessions.Subscribe,
    sessions.Unsubscribe,
    sessions.Credit,
    sessions.Settle,
    sessions.Extend,
    sessions.Browse,
    sessions.Purge,
    sessions.Pause,
    sessions.AckRange,
    sessions.Recalled,
)
"""Requests that take messages, or look at them."""
_Needs = tuple[tuple[Right, int], ...]
"""Needed rights: (right, id of the queue)."""


def lost_right(
    before: Permits | None, after: Permits | None, queue_id: int, used: Collection[Right]
) -> str:
    """Return why a session loses its current use of a queue; "": it loses nothing.

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
    """Rights of one key on one node, by its current catalog and the current key."""

    key: Key
    catalog: Catalog
    codec: OpCodec
    _known: dict[tuple[Right, int], str] = field(factory=dict)
    _index: int = 0
    """Catalog index at which the cached answers were found."""

    def refusal_of_call(self, call: clients.ClientCall) -> str:
        """Return why a call is refused; "": allowed."""
        match call.call:
            case clients.ClientDeclare() as declare:
                wrong = self._dead_refusal(declare)
                if wrong:
                    return wrong
                if declare.passive or self._id_of(declare.name):
                    return self._unknown(logical_name(declare.name))
                wrong = refusal(self.key, Right.CONFIGURE, declare.name)
                return wrong or self._too_many(declare)
            case clients.ClientDelete() as delete:
                return self.refusal(Right.CONFIGURE, delete.queue)
            case clients.ClientRead() | clients.ClientSeek() as reading:
                return self.refusal(Right.READ, reading.queue)
            case clients.ClientWatch() as watch:
                return self._unknown(watch.exchange, "exchange")
            case clients.ClientLook() as look:
                if look.what == "status":
                    return "" if self.sees(look.queue) else self._unknown_id(look.queue)
                # A list of queues contains only queues that the key knows.
                is_of_queues = look.what in ("queues", "shards")
                what = "clients and consumers" if look.what == "attendance" else look.what
                return "" if is_of_queues else self._not_admin(f"see the {what}")
            case clients.ClientDisconnect():
                return self._not_admin("disconnect clients")
            case clients.ClientAdminister() as administer:
                return self._refusal_of_command(administer)
        return self._not_admin("ask for this")

    def _refusal_of_command(self, administer: clients.ClientAdminister) -> str:
        match administer.command:
            case DeclareExchange() | DeleteExchange() as command:
                return refusal(self.key, Right.CONFIGURE, command.name, "exchange")
            case Bind() | Unbind() as command:
                wrong = refusal(self.key, Right.CONFIGURE, command.exchange, "exchange")
                if wrong or isinstance(command, Unbind):
                    return wrong
                return refusal(self.key, Right.WRITE, command.queue)
        return self._not_admin(f"do {type(administer.command).__name__}")

    def _too_many(self, declare: clients.ClientDeclare) -> str:
        """Return why the client may make no more queues; "": allowed."""
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

    def _dead_refusal(self, declare: clients.ClientDeclare) -> str:
        """Return why the client may not name the dead-letter queue; "": allowed. Its messages would
        arrive there."""
        try:
            target = arguments_of(declare.arguments).get("dead-letter-queue")
        except PolicyError as error:
            return str(error)
        return "" if target is None else refusal(self.key, Right.WRITE, target)

    def may_declare(self, name: str) -> bool:
        """Return true if the client may make the queue; else only an existing queue is returned."""
        return self.key.allows(Right.CONFIGURE, name)

    def refusal_of_request(self, queue_id: int, request: sessions.Request) -> str:
        """Return why a request to a queue's master is refused; "": allowed."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError as error:
            return str(error)
        for right, needed_id in needs:
            wrong = self.refusal(right, needed_id)
            if wrong:
                return wrong
        return "" if needs or self.sees(queue_id) else self._unknown_id(queue_id)

    def lacking(self, queue_id: int, request: sessions.Request) -> Right | None:
        """Return the only right to the queue that a request lacks; None: another, or several."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError:
            return None
        refused = [need for need in needs if self.refusal(*need)]
        return refused[0][0] if len(refused) == 1 and refused[0][1] == queue_id else None

    def _needs(self, queue_id: int, request: sessions.Request) -> _Needs:
        if isinstance(request, sessions.Publish):
            return self._needs_of_publish(queue_id, request)
        if isinstance(request, sessions.OpenProducer):
            # It has no effect alone; a client that moves acked messages elsewhere needs an id, too.
            return ()
        if isinstance(request, sessions.Settle) and request.kind == "move":
            return ((Right.READ, queue_id), (Right.WRITE, request.target))
        if isinstance(request, sessions.Purge) and request.target:
            return ((Right.READ, queue_id), (Right.WRITE, request.target))
        return ((Right.READ, queue_id),) if isinstance(request, READING) else ()

    def _needs_of_publish(self, queue_id: int, publish: sessions.Publish) -> _Needs:
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
            step = self.codec.read_step(publish.frame)
            reads = ((Right.READ, queue_id),)
            if isinstance(step, Step) and step.target:
                return (*reads, (Right.WRITE, step.target))
            if self.codec.header(publish.frame).count == 1:
                return reads  # The step acks, and puts nothing.
        return (*reads, (Right.WRITE, queue_id))

    def is_known(self, queue_id: int) -> bool:
        """Return true if the node knows the queue or its deletion; else it may come later."""
        return bool(self.catalog.name_of(queue_id)) or self.catalog.is_deleted(queue_id)

    def are_known(self, queue_id: int, request: sessions.Request) -> bool:
        """Return true if the node knows every queue that a request names."""
        try:
            needs = self._needs(queue_id, request)
        except ProtocolError:
            return True  # The request is refused later.
        return all(self.is_known(one) for _, one in needs)

    def sees(self, queue_id: int) -> bool:
        """Return true if the client has any right to the queue."""
        return any(not self.refusal(right, queue_id) for right in Right)

    def refusals(self, queue_id: int) -> dict[str, str]:
        """Return the rights that the client lacks for a queue: right -> why."""
        found = {right.value: self.refusal(right, queue_id) for right in Right}
        return {right: why for right, why in found.items() if why}

    def refusal(self, right: Right, queue_id: int) -> str:
        """Return why the client lacks a right to a queue; "": allowed."""
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
        """Return the id of a queue, sharded or not, by name; 0: no such queue."""
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
        """Return why the client may not know of a queue or exchange; "": allowed."""
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
