"""Masters which move while they live: by a policy, by `transfer_master`, by `rebalance`.

A lease is a node's, for all its queues. Waiting for its end would stop the deliveries of all
queues. So the leader asks a living master (`Yield`) to give up one queue in one epoch. From the
answer (`Yielded`) on the master hands out nothing of the queue until a newer view is installed.
Only then does the leader propose the view with the new master, which replaces the same epoch.

    1. The promise names the queue's present epoch, and the proposed view replaces the epoch
       by compare-and-set: between both no message was handed out, lease or not.
    2. A promised master is stuck until the epoch changes. So it repeats `Yielded` until the
       change. A leader without a wish to move the master proposes the same members again:
       the epoch grows, and the promise is void.
    3. An asker repeats the request until the answer, so a deposed leader's wish reaches the
       next leader; a wish without repetition is dropped.

All state here is one leader's memory of one term. Publishing, confirming and acking go on
throughout.
"""

from __future__ import annotations

from attrs import define, field

from mirrorq.cluster.controller.placement import Levelling
from mirrorq.protocol.control import Yield, Yielded
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View

ASK_AGAIN_MS = 100
"""Pause before a master without an answer is asked again."""
MOVES_AT_ONCE = 16
"""Masters which a rebalance moves at a time: each move pauses its queue for a moment."""


@define
class Rebalancing:
    """A rebalance with a waiting caller. Owned by the leader, lost with the term.

    Each repetition of the caller's request does a portion of the work: first all queues are looked
    at, then the moves are found, then they are carried out.
    """

    asker: tuple[MemberId, int]
    """(node, number of its request)."""
    unseen: list[int]
    """Queues still to be looked at, the next one last."""
    levelling: Levelling
    is_found: bool = False
    """True when all moves are found."""
    moving: dict[int, str] = field(factory=dict)
    """Queue id -> node, for moves under way."""
    moved: int = 0
    asked_ms: int = 0
    """When the asker last repeated its request."""

    @property
    def left(self) -> int:
        """Number of masters still to be moved, as known so far."""
        return len(self.levelling.moves) + len(self.moving)

    def next_move(self) -> tuple[int, str] | None:
        """Take the next move; None: enough are under way, or none is left."""
        moves = self.levelling.moves
        if len(self.moving) >= MOVES_AT_ONCE or not moves:
            return None
        queue_id = next(iter(moves))
        node = self.moving[queue_id] = moves.pop(queue_id)
        return queue_id, node


@define
class _Wish:
    """Where the leader wants a queue's master to be, until when."""

    node: str
    until_ms: int


@define
class HandOvers:
    """The leader's wishes for masters, and the masters' promises."""

    patience_ms: int
    """A wish is dropped after this time without repetition."""
    rebalancing: Rebalancing | None = None
    _wishes: dict[int, _Wish] = field(factory=dict)
    _asked: dict[int, tuple[int, int]] = field(factory=dict)
    """Queue id -> (epoch, when)."""
    _promised: dict[int, int] = field(factory=dict)
    """Queue id -> epoch in which the master hands nothing out any more."""
    _lingers: dict[int, int] = field(factory=dict)
    """Queue id -> time until which an unwanted master waits for its best follower."""
    _out: list[tuple[str, Yield]] = field(factory=list)

    def clear(self) -> None:
        """A term begins or ends."""
        self.rebalancing = None
        for known in (self._wishes, self._asked, self._promised, self._lingers):
            known.clear()
        self._out.clear()

    def forget(self, queue_id: int) -> None:
        """The queue is no more."""
        for known in (self._wishes, self._asked, self._promised, self._lingers):
            known.pop(queue_id, None)

    # --- Wishes -------------------------------------------------------------------------

    def wish(self, now_ms: int, queue_id: int, node: str) -> None:
        """Note the wish for a queue's master on the node."""
        self._wishes[queue_id] = _Wish(node, now_ms + self.patience_ms)

    def wished(self, now_ms: int, queue_id: int, view: View) -> str | None:
        """Return the node wished as master, while the wish holds; else None."""
        wish = self._wishes.get(queue_id)
        if wish is None:
            return None
        if now_ms >= wish.until_ms or view.members[0].id.node == wish.node:
            del self._wishes[queue_id]
            return None
        return wish.node

    def has_wish(self, queue_id: int) -> bool:
        """Return true if a wish would move the queue's master."""
        return queue_id in self._wishes

    def lingers_ms(self, now_ms: int, queue_id: int) -> int:
        """Return until when an unwanted master waits for the best of its followers.

        The wait begins with the first call, when some follower is in sync and the best is not: as a
        rule both synchronise at the same time. A slower follower is not waited for longer.
        """
        return self._lingers.setdefault(queue_id, now_ms + self.patience_ms)

    def end_linger(self, queue_id: int) -> None:
        """End the wait: the master is at the right node, or has no follower."""
        self._lingers.pop(queue_id, None)

    # --- Promises -----------------------------------------------------------------------

    def ask(self, now_ms: int, queue_id: int, view: View) -> int:
        """Ask the master for its promise, again if need be; return when to look again."""
        epoch, asked_ms = self._asked.get(queue_id, (0, 0))
        if epoch != view.epoch or now_ms >= asked_ms + ASK_AGAIN_MS:
            self._asked[queue_id] = (view.epoch, now_ms)
            self._out.append((view.members[0].id.node, Yield(queue_id, view.epoch)))
        return self._asked[queue_id][1] + ASK_AGAIN_MS

    def on_yielded(self, promise: Yielded, view: View) -> None:
        """Note a promise of the present master for the present epoch."""
        if (promise.epoch, promise.member) == (view.epoch, view.members[0].id):
            self._promised[promise.queue_id] = view.epoch

    def has_yielded(self, queue_id: int, view: View) -> bool:
        return self._promised.get(queue_id) == view.epoch

    def take_out(self) -> tuple[tuple[str, Yield], ...]:
        """Return the messages to send, once: (node, message)."""
        out = tuple(self._out)
        self._out.clear()
        return out
