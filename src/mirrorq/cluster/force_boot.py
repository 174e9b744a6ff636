"""The state with which one node goes on when all other nodes are lost for good: `force-boot`. Pure.

A lost majority can decide nothing any more, and its knowledge is lost. So nothing here pretends to
continue the old cluster. The survivor becomes the only node of *another* cluster with a new id, and
its store becomes another store. A node of the old cluster which comes back is a stranger: neither
side listens to the other. Old nodes return with empty stores only.

Each queue with a copy in the store goes on as after an unclean promotion, in sync or not: the node
cannot know which messages were confirmed without its copy. A new history begins: sequences and
producer ids jump far ahead, old acks are refused, and the delivery count of every kept message
grows. Epochs grow by `EPOCH_STEP`, beyond every epoch of the lost history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.catalog.records import NodeRecord, QueueRecord
from mirrorq.cluster.raft.messages import KIND_COMMAND, KIND_VOTERS, decode_voters
from mirrorq.protocol.effects import RaftImage, RaftSnapshot, RaftState, RaftWrite, SnapshotPage
from mirrorq.protocol.identities import MemberId, StoreId, first_incarnation, next_incarnation
from mirrorq.protocol.views import Member, View

EPOCH_STEP = 1 << 32
"""More views than the lost history can have had."""


@frozen
class Loss:
    """The fate of one queue when a node goes on alone."""

    queue: str
    has_copy: bool
    """A queue without a copy is deleted."""
    was_in_sync: bool
    """As far as the node knew: messages confirmed until then are in the copy."""
    is_exclusive: bool = False
    """The queue ends with its owner, and is deleted."""


@frozen
class RecoveredState:
    """A store's knowledge of its cluster."""

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
        """Return the fate of each queue, by name.

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
        """Return the write which replaces all knowledge of the lost cluster.

        Args:
            copies: ids of the queues of which the store has a copy.
            store: the store's new identity, random.
            chance: 63 random bits, for the id of the new cluster.
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
        pages = (SnapshotPage(index, number, page) for number, page in enumerate(snapshot.pages))
        return RaftWrite(RaftState(term), tuple(pages), snapshot)


def _view_of(view: View, me: MemberId) -> View:
    epoch = view.epoch + EPOCH_STEP
    members = (Member(me, True),)
    return View(epoch, members, "unclean", epoch, view.generation + 1, view.durability)


def recovered_state(node: str, store: int, image: RaftImage) -> RecoveredState | None:
    """Read the knowledge of a store. All entries of its log count, committed or not.

    Args:
        node: name of the store's node.

    Returns:
        None: the store belongs to no cluster yet.

    Raises:
        ProtocolError: an entry is of a later version of mirrorq.
    """
    catalog, index, term = Catalog(), 0, image.state.term
    voters: tuple[StoreId, ...] = ()
    if image.snapshot is not None:
        if image.snapshot.pages:
            catalog = Catalog.restore(image.snapshot.pages)
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
