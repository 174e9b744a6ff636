"""What one node goes on with when the others are lost for good: `force-boot`. Pure.

A majority that is lost can decide nothing any more, and what it knew is unknown. So nothing here
pretends to continue it: the survivor becomes the only node of *another* cluster, with an id of its
own, and its store another store. Whoever comes back after all is a stranger to it, and it to them:
neither listens to the other, and old nodes return with empty stores only.

Each queue of which this store has a copy goes on here as after an unclean promotion, whether the
copy was in sync or not: its node cannot know what was confirmed without it. Another past begins:
sequences and producer ids far ahead, no old ack taken, every message that is kept counted once
more. Epochs move by `EPOCH_STEP`, beyond all that the lost past can have reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from mirrorq.cluster.catalog.core import Catalog
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.catalog.records import NodeRecord, QueueRecord
from mirrorq.cluster.raft.messages import KIND_COMMAND, KIND_VOTERS, decode_voters
from mirrorq.protocol.effects import RaftImage, RaftSnapshot, RaftState, RaftWrite
from mirrorq.protocol.identities import MemberId, StoreId, first_incarnation, next_incarnation
from mirrorq.protocol.views import Member, View

EPOCH_STEP = 1 << 32
"""More views than the lost past can have had."""


@frozen
class Loss:
    """What becomes of one queue when a node goes on alone."""

    queue: str
    has_copy: bool
    """Without one the queue is deleted."""
    was_in_sync: bool
    """As far as this node knew: what was confirmed then is here."""
    is_exclusive: bool = False
    """It went with its owner, and is deleted."""


@frozen
class RecoveredState:
    """What a store knows of its cluster."""

    node: NodeRecord
    """The record of the store's own node."""
    voters: tuple[StoreId, ...]
    catalog: Catalog
    index: int
    term: int

    @property
    def others(self) -> tuple[str, ...]:
        """Names of all other nodes and voters, sorted."""
        names = {voter.node: None for voter in self.voters}
        names.update({node.name: None for node in self.catalog.nodes()})
        return tuple(sorted(name for name in names if name != self.node.name))

    def losses(self, copies: Iterable[int]) -> tuple[Loss, ...]:
        """What becomes of each queue, by name.

        Args:
            copies: ids of the queues of which the store has a copy.
        """
        held = dict.fromkeys(copies)
        found = (
            Loss(queue.name, queue.id in held, self._is_in_sync(queue), queue.exclusive)
            for queue in self.catalog.queues()
        )
        return tuple(sorted(found, key=lambda loss: loss.queue))

    def _is_in_sync(self, queue: QueueRecord) -> bool:
        mine = (self.node.name, self.node.store)
        return any(
            one.in_sync and (one.id.node, one.id.store) == mine for one in queue.view.members
        )

    def inherited(self, copies: Iterable[int], store: int, chance: int) -> RaftWrite:
        """What is to be written in place of all that is known of the lost cluster.

        Args:
            copies: ids of the queues of which the store has a copy.
            store: the store's identity from now on, random.
            chance: of 63 bits: what is new in the id of the new cluster.
        """
        me = MemberId(self.node.name, store, first_incarnation(store))
        views: Mapping[int, View] = {
            queue.id: _view_of(queue.view, me)
            for queue in map(self.catalog.queue, copies)
            if queue is not None and not queue.exclusive
        }
        index, term = self.index + 1, self.term + 1
        survivor = NodeRecord(me.node, store, me.incarnation, self.node.endpoint, self.node.witness)
        cluster = next_incarnation(self.catalog.cluster, chance)
        self.catalog.outlive(survivor, self.voters, cluster, views)
        self.catalog.applied_index = index
        voters = (StoreId(me.node, store),)
        snapshot = RaftSnapshot(index, term, voters, self.catalog.snapshot())
        return RaftWrite(RaftState(term), snapshot)


def _view_of(view: View, me: MemberId) -> View:
    epoch = view.epoch + EPOCH_STEP
    members = (Member(me, True),)
    return View(epoch, members, "unclean", epoch, view.generation + 1, view.durability)


def recovered_state(node: str, store: int, image: RaftImage) -> RecoveredState | None:
    """Read what a store knows: all of its log counts, committed or not, for who could tell?

    Args:
        node: name of the store's node.

    Returns:
        None: it is of no cluster yet, and knows nothing.

    Raises:
        ProtocolError: an entry is of a later version of mirrorq.
    """
    catalog, index, term = Catalog(), 0, image.state.term
    voters: tuple[StoreId, ...] = ()
    if image.snapshot is not None:
        if image.snapshot.data:
            catalog = Catalog.restore(image.snapshot.data)
        index, voters = image.snapshot.index, image.snapshot.voters
        term = max(term, image.snapshot.term)
    for entry in image.entries:
        index, term = entry.index, max(term, entry.term)
        if entry.kind == KIND_COMMAND:
            proposal, command = unpack(entry)
            catalog.apply(entry.index, command, proposal.request)
        elif entry.kind == KIND_VOTERS:
            voters = decode_voters(entry.data) or voters
    if not voters:
        return None
    record = catalog.node(node)
    if record is None or record.store != store:
        endpoint, witness = ("", False) if record is None else (record.endpoint, record.witness)
        record = NodeRecord(node, store, first_incarnation(store), endpoint, witness)
    return RecoveredState(record, voters, catalog, index, term)
