"""Masters that move while they live: by a policy, by `transfer_master`, by `rebalance`.

A lease is a node's, for all its queues, and waiting for it to run out would stop the deliveries
of them all. So a living master is asked (`Yield`) to give up one queue in one epoch. From its
answer (`Yielded`) on it hands out nothing of that queue until it has installed a newer view;
only then does the leader propose the view with the new master, which replaces that very epoch.

    1. The promise names the queue's present epoch, and the view proposed replaces that epoch
       by compare-and-set: between the two nothing of the queue was handed out, lease or not.
    2. A master that promised is stuck until the epoch changes. So it repeats `Yielded` until it
       does, and a leader that does not want it to go (any more), or knows nothing of it,
       proposes the same members again: the epoch grows, and the promise with it is void.
    3. Who asks repeats the request until it is answered, so a wish that a deposed leader had
       comes to the next one; a wish that is not repeated is dropped.

Everything here is one leader's memory of one term. Publishing, confirming and acking go on
throughout.
"""

from __future__ import annotations

from attrs import define, field

from mirrorq.protocol.control import Yield, Yielded
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View

ASK_AGAIN_MS = 100
"""A master that has not answered is asked again after this."""
MOVES_AT_ONCE = 16
"""Masters that a rebalance moves at a time: each move makes its queue pause for a moment."""


@define
class Rebalancing:
    """One rebalance that somebody waits for: the masters that are still to move. The leader's, lost
    with its term."""

    asker: tuple[MemberId, int]
    """(node, number of its request)."""
    moves: dict[int, str]
    """Queue id -> node, those still to be done."""
    moved: int = 0
    asked_ms: int = 0
    """When the asker last repeated its request."""

    def next_moves(self) -> list[tuple[int, str]]:
        return list(self.moves.items())[:MOVES_AT_ONCE]


@define
class _Wish:
    """Where the leader wants a queue's master to be, until when."""

    node: str
    until_ms: int


@define
class HandOvers:
    """What the leader wishes of masters, and what they have promised."""

    patience_ms: int
    """A wish that nobody repeats is dropped after this."""
    rebalancing: Rebalancing | None = None
    _wishes: dict[int, _Wish] = field(factory=dict)
    _asked: dict[int, tuple[int, int]] = field(factory=dict)
    """Queue id -> (epoch, when)."""
    _promised: dict[int, int] = field(factory=dict)
    """Queue id -> the epoch in which its master hands nothing out any more."""
    _lingers: dict[int, int] = field(factory=dict)
    """Queue id -> until when an unwanted master waits for the node that should follow it."""
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
        """The queue's master should be this node."""
        self._wishes[queue_id] = _Wish(node, now_ms + self.patience_ms)

    def wished(self, now_ms: int, queue_id: int, view: View) -> str | None:
        """Return where the master should be by a wish that still holds."""
        wish = self._wishes.get(queue_id)
        if wish is None:
            return None
        if now_ms >= wish.until_ms or view.members[0].id.node == wish.node:
            del self._wishes[queue_id]
            return None
        return wish.node

    def has_wish(self, queue_id: int) -> bool:
        """Say whether somebody wants this queue's master elsewhere."""
        return queue_id in self._wishes

    def lingers_ms(self, now_ms: int, queue_id: int) -> int:
        """Return until when an unwanted master waits for the best of its followers.

        The wait begins with the first call, when some follower is in sync and the best is not:
        as a rule they synchronise at the same time. One that cannot is not waited for longer.
        """
        return self._lingers.setdefault(queue_id, now_ms + self.patience_ms)

    def end_linger(self, queue_id: int) -> None:
        """Its master is where it should be, or has nobody to follow it."""
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
        """Return what is to be sent: (node, message)."""
        out = tuple(self._out)
        self._out.clear()
        return out
