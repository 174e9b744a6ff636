"""An onlooker outside all nodes: it sees each step and each reply, and judges at once.

What it checks cannot be seen in a run's end: one order of ops on all copies, one confirming
master per epoch, that a confirmed message is on every disk that it was promised to be on
at the moment of the promise, and that each priority is handed out in its order. It reads
engines and disks and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from zlib import crc32

from attrs import define, evolve, field, frozen

from harness.rail import RailDisk
from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.effects import QueueImage, QueueWrite
from mirrorq.protocol.identities import MemberId, SessionId, StoreId
from mirrorq.protocol.ops import (
    AckOp,
    DiscardOp,
    DropHeadOp,
    Entry,
    ExpiryOp,
    OutboxOp,
    Payload,
    PromotedOp,
    PurgeOp,
)
from mirrorq.protocol.ring import Data
from mirrorq.protocol.sessions import Confirmed, Deliver, SessionReply
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp
from mirrorq.protocol.views import View, find_store
from mirrorq.replication.queue_time import KEPT_US
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import QueueFiles, SimulatedDisk

NEAR = 64
"""A frame with this message is looked for so many sequences back before all are looked at."""
ENDINGS: dict[type, str] = {
    AckOp: "acked",
    PurgeOp: "purged",
    DropHeadOp: "dropped",
    ExpiryOp: "expired",
    DiscardOp: "discarded",
    OutboxOp: "sent on",
}
"""Ops that end messages, and what is said of these then."""


DRIFT = 50
"""Thousandths by which clocks run apart, and a little for how stamps are brought near them."""
LATE_MS = 10_000
"""Words of a master may come so late."""
KEPT_MS = KEPT_US // 1000
"""A node that begins again knows the time so well."""
ASKED = AbortOp | SealOp | AskOp
Copy = tuple[Replica, list[Data]]
"""A copy, and what its node's rail has marked at receipt and not handed over yet."""


@define
class _Copy:
    """One node's log of one queue, as its writes show it."""

    digests: dict[int, int] = field(factory=dict)
    """lsn -> checksum of the op; what came within a transferred state is not there."""
    payloads: dict[int, Payload] = field(factory=dict)
    """lsn -> what is not applied yet and is to be remembered when it is."""
    applied: int = 0

    def note(self, write: QueueWrite) -> None:
        if write.reset:
            self.digests.clear()
            self.applied = 0
            self.payloads.clear()
        cut = write.truncate_to
        if cut is not None:
            self.digests = {lsn: crc for lsn, crc in self.digests.items() if lsn <= cut}
        self.add(write.append)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.digests[entry.lsn] = crc32(entry.frame)
            if type(entry.payload) in ENDINGS or isinstance(entry.payload, PromotedOp | ASKED):
                self.payloads[entry.lsn] = entry.payload
            else:
                self.payloads.pop(entry.lsn, None)


@frozen
class Passed:
    """One delivery, as its master has sent it."""

    epoch: int
    number: int
    first: int
    last: int
    session: SessionId
    time_ms: int


@frozen
class _Moment:
    """When an op was made, and what its stamp says."""

    generation: int
    master_epoch: int
    lsn: int
    stamp_us: int
    true_ms: int

    @property
    def place(self) -> tuple[int, int, int]:
        return self.generation, self.master_epoch, self.lsn

    def is_same_op(self, other: _Moment) -> bool:
        """Whether both are of one op, whichever past it was counted to."""
        mine, others = (self.place[1:], self.stamp_us), (other.place[1:], other.stamp_us)
        return mine == others

    def is_overwritten(self, new: _Moment, replica: Replica) -> bool:
        """Whether a later term has another op in its place, as far as its log still shows."""
        if self.master_epoch == new.master_epoch:
            return False
        entry = replica.ring.log.entry(self.lsn)
        is_other = entry is not None and entry.header.timestamp_us != self.stamp_us
        return is_other or self.lsn >= new.lsn


@define
class Onlooker:
    """What it has seen; `wrong` holds a sentence for each rule that was broken."""

    wrong: list[str] = field(factory=list)
    confirms: int = 0
    """Confirmed messages whose disks were looked at."""
    given_out: dict[int, RangeSet] = field(factory=dict)
    """queue -> sequences that were handed out at least once."""
    ended: dict[int, dict[int, tuple[str, int]]] = field(factory=dict)
    """queue -> sequence -> the word of `ENDINGS` for its end, and when that was first applied."""
    colds: dict[int, int] = field(factory=dict)
    """queue -> when a cold promotion was first applied, the last one: transient messages ended."""
    uncleans: dict[int, list[int]] = field(factory=dict)
    """queue -> when unclean promotions were first applied: what was before may be lost."""
    reports: dict[int, list[int]] = field(factory=dict)
    """queue -> when the new master of each of these had last heard what the old one counts."""
    asked: dict[int, set[int]] = field(factory=dict)
    """queue -> lsns of applied ops about staged messages that are no commits: a confirm of one
    names its lsn."""
    views: dict[int, View] = field(factory=dict)
    """queue -> the newest view that any copy has installed, also of a queue that is no more."""
    passed: dict[int, list[Passed]] = field(factory=dict)
    """queue -> all its deliveries, of those queues that have a list here."""
    _moments: dict[int, list[_Moment]] = field(factory=dict)
    """queue -> of each term the last op, as far as later terms still have these ops."""
    _copies: dict[tuple[str, int], _Copy] = field(factory=dict)
    _order: dict[tuple[int, int, int], tuple[int, str]] = field(factory=dict)
    """(queue, generation, lsn) -> checksum of the op applied there, and who applied it first."""
    _confirming: dict[tuple[int, int], str] = field(factory=dict)
    """(queue, epoch) -> the node that confirmed in it."""
    _deleted: set[int] = field(factory=set)
    """Queues that some node has dropped: its disk holds no more what others still confirm."""
    _handed: dict[tuple[int, int, int], list[tuple[int, int, int]]] = field(factory=dict)
    """(queue, term, priority) -> what was handed out: (number, first place, last place)."""

    set_aside: dict[int, RangeSet] = field(factory=dict)
    """Queue -> what a master had to set aside."""

    _promised: dict[tuple[StoreId, int], int] = field(factory=dict)
    """(store, queue) -> the last lsn that its node has told to be there, unless cut since."""
    _begun_anew: dict[tuple[StoreId, int], int] = field(factory=dict)
    """(store, queue) -> the epoch of the newest view, which had this copy not in sync when it was
    dropped to be taken anew: a confirm in an earlier view may count what it had."""

    def on_railed(self, store: StoreId, messages: Iterable[Data]) -> None:
        """A node's rail has written these, and tells their masters so."""
        for data in messages:
            self._promise(store, data.queue_id, data.entries[-1].lsn)

    def on_commit(self, store: StoreId, writes: Iterable[QueueWrite]) -> None:
        """A node has written these, and what it tells of them rests on that."""
        for write in writes:
            key = store, write.queue_id
            if write.reset:
                self._promised.pop(key, None)
                self._note_begun_anew(*key)
            if write.truncate_to is not None and key in self._promised:
                self._promised[key] = min(self._promised[key], write.truncate_to)
            if write.append:
                self._promise(store, write.queue_id, write.append[-1].lsn)

    def _note_begun_anew(self, store: StoreId, queue_id: int) -> None:
        view = self.views.get(queue_id)
        if view is None:
            return
        member = find_store(view, store.node, store.store)
        if member is None or not member.in_sync:
            self._begun_anew[store, queue_id] = view.epoch

    def _promise(self, store: StoreId, queue_id: int, lsn: int) -> None:
        self._promised[store, queue_id] = max(self._promised.get((store, queue_id), 0), lsn)

    def _judge_promises(self, store: StoreId, images: Iterable[QueueImage]) -> None:
        """What a node has told to be on its disk is there when it starts, however it ended."""
        found = {image.queue_id: image for image in images}
        for (its_store, queue_id), lsn in self._promised.items():
            image = found.get(queue_id)
            if its_store != store or (image is not None and image.broken):
                continue
            last = 0
            if image is not None:
                last = max((image.state_lsn, *(entry.lsn for entry in image.entries)))
            if last < lsn:
                self.wrong.append(
                    f"promise broken: {store.node} has told that op {lsn} of queue {queue_id} is "
                    f"on its disk, and begins again with those up to {last}"
                )

    def on_start(self, store: StoreId, images: Iterable[QueueImage]) -> None:
        """A node starts with what its disk holds."""
        node = store.node
        self._judge_promises(store, images)
        for key in [key for key in self._copies if key[0] == node]:
            del self._copies[key]
        for image in images:
            copy = self._copies[node, image.queue_id] = _Copy()
            copy.add(image.entries)

    def on_step(
        self,
        node: str,
        writes: Iterable[QueueWrite],
        replicas: Mapping[int, Replica],
        stepped: Iterable[int],
        is_deleted: Callable[[int], bool],
        now_ms: int,
        reported_ms: Callable[[int], int] = lambda _: -1,
    ) -> None:
        """A node has stepped, and with it these of its replicas: hold what they have applied
        against what others have."""
        for queue_id in stepped:
            replica = replicas.get(queue_id)
            if replica is None or replica.master is None:
                continue
            for one in replica.transfer.lost:
                for piece in replica.state.carried(*one):
                    self.set_aside.setdefault(queue_id, RangeSet()).add(*piece)
        for write in writes:
            self._copy(node, write.queue_id).note(write)
            if write.reset and is_deleted(write.queue_id):
                self._deleted.add(write.queue_id)
        for queue_id in stepped:
            replica = replicas.get(queue_id)
            if replica is None:
                continue
            view, known = replica.ring.view, self.views.get(queue_id)
            if view is not None and (known is None or known.epoch < view.epoch):
                self.views[queue_id] = view
            self._note_time(replica, now_ms)
            copy = self._copy(node, queue_id)
            if copy.applied == replica.state.applied:
                continue
            past = replica.state.generation
            if replica.ring.view is not None and replica.ring.repaired:
                # What a master had when it was promoted uncleanly is of the new past, too: it may
                # never have been stable, and be applied just before the op that begins that past.
                past = max(past, replica.ring.view.generation)
            for lsn in range(copy.applied + 1, replica.state.applied + 1):
                place = (replica.queue_id, past, lsn)
                digest, op = copy.digests.get(lsn), copy.payloads.pop(lsn, None)
                entry = replica.ring.log.entry(lsn)
                if entry is not None:  # it may be written behind
                    digest, op = crc32(entry.frame), entry.payload
                if isinstance(op, ASKED):
                    self.asked.setdefault(queue_id, set()).add(lsn)
                if self._on_applied(node, place, digest):
                    self._note_end(queue_id, op, now_ms, reported_ms)
            copy.applied = replica.state.applied

    def _note_time(self, replica: Replica, now_ms: int) -> None:
        """The queue's time goes as true time does, whatever the wall clocks of masters say."""
        master, log = replica.master, replica.ring.log.entries
        if master is None or not log or log[-1].epoch < master.master_epoch:
            return
        generation, header = replica.state.generation, log[-1].header
        new = _Moment(generation, master.master_epoch, header.lsn, header.timestamp_us, now_ms)
        moments = self._moments.setdefault(replica.queue_id, [])
        if moments and new.place <= moments[-1].place:
            return
        if moments and new.is_same_op(moments[-1]):
            # The op that begins another past was noted before it was applied, when it was made.
            new = evolve(new, true_ms=moments[-1].true_ms)
        # Ops that another has overwritten: who wrote them is gone, and nobody left had heard them.
        while moments and moments[-1].is_overwritten(new, replica):
            moments.pop()
        known = moments[-1] if moments else None
        if known is not None and known.master_epoch == new.master_epoch:
            moments.pop()
        moments.append(new)
        if known is None or known.generation < generation:
            return
        passed_ms = (new.stamp_us - known.stamp_us) / 1000
        gap_ms = now_ms - known.true_ms
        # Both stamps and both looks are whole milliseconds.
        most_ms = least_ms = gap_ms * DRIFT / 1000 + 2
        if known.master_epoch < new.master_epoch:
            # What the last one said may have been on its way, or before a node that stood still.
            most_ms, least_ms = most_ms + KEPT_MS, gap_ms + LATE_MS
        if not -least_ms <= passed_ms - gap_ms <= most_ms:
            self.wrong.append(
                f"time: {passed_ms:.0f} ms of queue {replica.queue_id} passed in {gap_ms} ms, "
                f"before op {header.lsn} of term {new.master_epoch}"
            )

    def _copy(self, node: str, queue_id: int) -> _Copy:
        copy = self._copies.get((node, queue_id))
        if copy is None:
            copy = self._copies[node, queue_id] = _Copy()
        return copy

    def _on_applied(self, node: str, place: tuple[int, int, int], digest: int | None) -> bool:
        """Whether nobody has applied this op before."""
        if digest is None:
            return False
        is_first = place not in self._order
        known, first = self._order.setdefault(place, (digest, node))
        if known != digest:
            self.wrong.append(f"two orders: {node} and {first} applied other ops at {place}")
        return is_first

    def _note_end(
        self, queue_id: int, op: Payload, now_ms: int, reported_ms: Callable[[int], int]
    ) -> None:
        word = ENDINGS.get(type(op))
        if word is not None:
            ended = self.ended.setdefault(queue_id, {})
            for first, last in op.ranges:  # type: ignore[union-attr]
                for sequence in range(first, last + 1):
                    ended.setdefault(sequence, (word, now_ms))
        elif isinstance(op, PromotedOp) and op.how != "clean":
            self.colds[queue_id] = now_ms
            if op.how == "unclean":
                self.uncleans.setdefault(queue_id, []).append(now_ms)
                self.reports.setdefault(queue_id, []).append(reported_ms(queue_id))

    def on_reply(
        self,
        node: str,
        reply: SessionReply,
        replica: Replica,
        disk_of: Callable[[str], SimulatedDisk],
        copy_of: Callable[[MemberId, int], Copy | None],
        now_ms: int = 0,
    ) -> None:
        """The master sends a reply: a confirm must be true now."""
        if isinstance(reply.reply, Deliver):
            self._note_order(reply.epoch, reply.reply, replica)
            self._note_holder(reply.session, reply.reply, replica, now_ms)
            return
        confirmed, view = reply.reply, replica.ring.view
        if not isinstance(confirmed, Confirmed) or view is None:
            return
        first = self._confirming.setdefault((reply.queue_id, view.epoch), node)
        if first != node:
            self.wrong.append(f"two masters: {node} and {first} confirm in epoch {view.epoch}")
        for _, count, sequence in confirmed.runs:
            self.confirms += count
            last = sequence + count - 1
            if view.durability == "replicated":
                self._check_memories(reply.queue_id, view, sequence, last, copy_of)
                continue
            self._check_disks(reply.queue_id, view, sequence, last, disk_of)

    def misordered(self) -> list[str]:
        """P2: what is handed out for the first time in a term comes after all such before."""
        wrong = []
        for (_, master_epoch, priority), pieces in self._handed.items():
            handed = RangeSet()
            for number, first, last in sorted(pieces):
                new = RangeSet(((first, last),))
                for known in handed.within(first, last):
                    new.remove(*known)
                if new and handed and new.first < handed.last:
                    wrong.append(
                        f"order: {new.first} to {last} of priority {priority} after {handed.last}, "
                        f"delivery {number} of term {master_epoch}"
                    )
                handed.add(first, last)
        return wrong

    def _note_order(self, master_epoch: int, deliver: Deliver, replica: Replica) -> None:
        given_out = self.given_out.setdefault(replica.queue_id, RangeSet())
        for piece in deliver.deliveries:
            given_out.add(piece.first, piece.last)
            aside = self.set_aside.get(replica.queue_id)
            if aside is not None and aside.within(piece.first, piece.last):
                continue  # nobody who could be asked had it whole: it comes late to its place
            if piece.first in replica.state.returned:
                continue  # it may have been given back with a delay: it comes late to its place
            for run in replica.state.runs(piece.first, piece.last):
                key = (replica.queue_id, master_epoch, run.priority)
                places = (piece.number, run.first + run.shift, run.last + run.shift)
                self._handed.setdefault(key, []).append(places)

    def _note_holder(
        self, session: SessionId, deliver: Deliver, replica: Replica, now_ms: int
    ) -> None:
        """Who has a queue for itself, or is the one that is served, is the only one served."""
        passed = self.passed.get(replica.queue_id)
        if passed is not None:
            for one in deliver.deliveries:
                piece = (one.epoch, one.number, one.first, one.last)
                passed.append(Passed(*piece, session, now_ms))
        master = replica.master
        if master is None:
            return
        seats = master.dispatch.consumers.by_key
        alone = next((key for key, seat in seats.items() if seat.bare and seat.exclusive), None)
        if alone is None and master.dispatch.is_single:
            alone = next((key for key in seats if key[1] != 0), None)
        if alone is not None and alone != (session, deliver.consumer):
            self.wrong.append(
                f"served beside the only one: {session} of queue {replica.queue_id}, which "
                f"{alone[0]} has"
            )

    def _check_memories(
        self,
        queue_id: int,
        view: View,
        first: int,
        last: int,
        copy_of: Callable[[MemberId, int], Copy | None],
    ) -> None:
        """`durability: replicated`: every life in sync that goes on has the message."""
        if queue_id in self._deleted:
            return
        for member in view.members:
            copy = copy_of(member.id, queue_id) if member.in_sync else None
            if copy is not None and not _has_received(*copy, last):
                self.wrong.append(
                    f"confirmed too early: {first} to {last} did not all come to "
                    f"{member.id.node}, in sync in epoch {view.epoch}"
                )

    def _check_disks(
        self,
        queue_id: int,
        view: View,
        first: int,
        last: int,
        disk_of: Callable[[str], SimulatedDisk],
    ) -> None:
        if queue_id in self._deleted:
            return
        for member in view.members:
            disk = disk_of(member.id.node)
            if not member.in_sync or disk.store != member.id.store:
                continue
            store = StoreId(member.id.node, member.id.store)
            if view.epoch < self._begun_anew.get((store, queue_id), 0):
                continue  # a later view is in force, and there it has to have nothing yet
            # A confirm may come late, by a resend: what has ended needs no disk any more, and a
            # copy that was transferred meanwhile never had its frame.
            ended = self.ended.get(queue_id, {})
            missing = [s for s in _missing(disk, queue_id, first, last) if s not in ended]
            files = disk.queues.get(queue_id)
            if first in self.asked.get(queue_id, ()) and files and files.state_lsn >= first:
                continue  # the op was this one, and is in the checkpoint
            if missing:
                self.wrong.append(
                    f"confirmed too early: sequence {missing[0]} is not on the disk of "
                    f"{member.id.node}, in sync in epoch {view.epoch}"
                )


def _has_received(copy: Replica, marked: list[Data], last: int) -> bool:
    """Whether a copy has the op that publishes this message; sequences come in order."""
    beside = [entry for data in marked for entry in data.entries]
    for entry in reversed([*copy.ring.log.entries, *beside]):
        if entry.payload is None:
            return entry.header.last_sequence >= last or copy.state.next_sequence > last
    return copy.state.next_sequence > last


def _missing(disk: SimulatedDisk, queue_id: int, first: int, last: int) -> list[int]:
    """Sequences that are neither on this disk nor known there to have ended."""
    files = disk.found(queue_id) if isinstance(disk, RailDisk) else disk.queues.get(queue_id)
    if files is None:
        return [first]
    gone = absent(files, first, last)
    if gone and _is_decided(files, first):
        return []
    if not gone or files.state is None:
        return gone
    state = QueueState.decode(files.state)
    return [s for s in gone if s >= state.next_sequence or state.live.within(s, s)]


def _is_decided(files: QueueFiles, sequence: int) -> bool:
    """Whether what was confirmed is an op about staged messages that is here: a commit, by the
    sequence that it has, or another one, by its lsn."""
    for entry in files.ops.values():
        op = entry.payload
        if isinstance(op, CommitOp) and op.sequence == sequence:
            return True
        if isinstance(op, ASKED) and entry.lsn == sequence:
            return True
    return False


def absent(files: QueueFiles, first: int, last: int) -> list[int]:
    """Sequences of which no publish op is here, frame by frame."""
    gone: list[int] = []
    while first <= last:
        upto = _covered(files, first)
        if upto < first:
            gone.append(first)
        first = max(upto, first) + 1
    return gone


def _covered(files: QueueFiles, sequence: int) -> int:
    """The last message of the publish op with this one, the last that begins at or before it;
    0: it is not here."""
    for first in range(sequence, max(sequence - NEAR, 0), -1):
        entry = files.frames.get(first)
        if entry is not None:
            return _reach(entry, sequence)
    before = max((first for first in files.frames if first <= sequence), default=0)
    return _reach(files.frames[before], sequence) if before else 0


def _reach(entry: Entry, sequence: int) -> int:
    last = entry.header.last_sequence
    return last if last >= sequence else 0
