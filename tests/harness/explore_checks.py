"""What must hold in every state of an exploration, each checker under a name of its own.

`Witness` is what an onlooker outside all nodes has written down: every op that any master
ever called stable, every confirm, delivery and settled ack. The checkers hold the nodes and
their disks against it:

    stable      an lsn is called stable with one content only, and without a gap (P5)
    disk        each member in sync of the last committed view has every stable op, or a state
                made of it and the frames that live in it, on its disk (P1)
    memory      the log of a running member in sync holds every stable op (P1)
    log         what a repaired member knows to be stable is what was called stable
    applied     equal states at equal lsns, and nothing applied that is not stable (R3)
    durable     a member's `durable` is on its disk and agrees with its log (R2)
    confirm     a confirm names a stable op and its sequence (R3)
    duplicate   no number of a producer is twice in the queue, none before a lesser one (P4)
    delivery     of all deliveries of a message only the first may have delivery count 1 (P3)
    acked       nothing whose ack was settled is handed out again, or lives on (P3)
    owned       what belongs to one connection: see `explore_owner`
    invariant   what the modules say of themselves

An unclean promotion begins another past: the first ops that its master calls stable say which of
the old ones are kept. Until then the old master goes on and only invariants are looked at; from
then on what masters of earlier epochs say is void. A member is held against the new past
when it is repaired in it.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.explore_owner import OWNER, Owner
from harness.explore_process import QUEUE, STRANGER_SESSION, Done, Process, Processes
from harness.rail import MARKED
from mirrorq.protocol.ops import Entry, OpKind
from mirrorq.protocol.sessions import (
    Confirmed,
    Deliver,
    Delivery,
    Purged,
    Refused,
    ResendNumber,
    SessionReply,
    Settled,
)
from mirrorq.protocol.views import View, counts_incarnations, in_sync_ids
from mirrorq.replication.state.queue_state import QueueState


class Violation(Exception):
    """A checker found something that must never be."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Witness(NamedTuple):
    """What the outside world has seen so far."""

    stable: tuple[Entry, ...] = ()
    """Every op that a master called stable, by lsn from 1."""
    confirmed: tuple[tuple[int, int], ...] = ()
    """(producer's number, sequence), sorted."""
    sent: tuple[tuple[int, int], ...] = ()
    """(term, highest number that the producer has sent in it)."""
    handed: tuple[int, ...] = ()
    """Sequences that the consumer has been given, sorted."""
    held: tuple[Delivery, ...] = ()
    """What it has and has not settled."""
    settling: tuple[tuple[int, int, Delivery], ...] = ()
    """Acks that are not answered: (term in which it was sent, request, what)."""
    gone: tuple[tuple[str, Delivery], ...] = ()
    """What went back, and how a settlement of it may come late: "again" or "ack late"."""
    settled: tuple[int, ...] = ()
    """Sequences whose ack has been told to be done, sorted."""
    past: int = 0
    """Epoch of the last unclean promotion."""
    is_open: bool = False
    """Nobody has said yet what its past is."""
    owner: Owner = Owner()
    """Of an exclusive queue."""

    def sent_in(self, master_epoch: int) -> int:
        """The highest number sent in this term; what is confirmed is not sent again."""
        known = dict(self.sent).get(master_epoch)
        return self.prefix if known is None else known

    @property
    def prefix(self) -> int:
        """Numbers up to this are confirmed."""
        done = 0
        for number, _ in self.confirmed:
            if number != done + 1:
                break
            done = number
        return done


class Checkers:
    """All checkers; what they found of equal parts of states is kept."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._states: dict[tuple[Entry, ...], QueueState] = {(): QueueState()}
        self._encoded: dict[tuple[Entry, ...], bytes] = {}
        self._passed: set[tuple[int, tuple[Entry, ...], bool, bool, bool, bool]] = set()

    # --- What a step showed -------------------------------------------------------------

    def after(self, witness: Witness, done: Done) -> Witness:
        """The witness after a node's step. Raises Violation."""
        if done.error:
            raise Violation("invariant", done.error)
        is_old = self._epoch(self._processes[done.process]) < witness.past
        if is_old and not witness.is_open:
            return witness
        if done.declared:
            if not is_old:
                witness = self._past_chosen(witness, done)
            witness = self._on_declared(witness, done)
        for term in done.deletes:
            witness = self._on_asked(witness, term)
        for reply in done.replies:
            self._check_alone(witness, reply)
            match reply.reply:
                case Confirmed():
                    witness = self._on_confirmed(witness, reply.reply)
                case Deliver():
                    witness = self._on_delivered(witness, reply.reply)
                case Settled():
                    witness = self._on_settled(witness, reply.epoch, reply.reply)
                case ResendNumber():
                    sent = dict(witness.sent) | {reply.epoch: reply.reply.number - 1}
                    witness = witness._replace(sent=tuple(sorted(sent.items())))
                case Refused() if not reply.reply.is_lost:
                    raise Violation("confirm", f"{reply.reply} though nothing is refused here")
                case _:
                    pass
        return witness

    def _epoch(self, process: Process) -> int:
        return process.replica.ring.epoch if process.replica is not None else process.epoch

    def _past_chosen(self, witness: Witness, done: Done) -> Witness:
        """The first ops that are stable after an unclean promotion: those before stay.

        What lives again is told by all that the new master begins with: it may call more of it
        stable later.
        """
        if not witness.is_open:
            return witness
        stable = witness.stable[: done.declared_from - 1]
        replica = self._processes[done.process].replica
        own = () if replica is None else replica.ring.log.entries
        later = {entry.lsn: entry for entry in (*own, *done.declared)}
        begun = [later[lsn] for lsn in sorted(later) if lsn >= done.declared_from]
        live = self.state_at((*stable, *begun)).live
        settled = tuple(s for s in witness.settled if s not in live)
        return witness._replace(stable=stable, settled=settled, settling=(), is_open=False)

    def _on_declared(self, witness: Witness, done: Done) -> Witness:
        stable = witness.stable
        lsn = done.declared_from
        if lsn > len(stable) + 1:
            raise Violation("stable", f"a master skips from {len(stable)} to {lsn}")
        for entry in done.declared:
            if entry.lsn <= len(stable):
                if stable[entry.lsn - 1] is not entry:
                    raise Violation(
                        "stable",
                        f"lsn {entry.lsn} was {_name(stable[entry.lsn - 1])}, "
                        f"is {_name(entry)} now",
                    )
            else:
                stable = (*stable, entry)
        self._check_numbers(stable)
        return witness._replace(stable=stable)

    def _check_numbers(self, stable: tuple[Entry, ...]) -> None:
        highest = 0
        for entry in stable:
            header = entry.header
            if header.kind == OpKind.PUBLISH:
                if header.first_number <= highest:
                    raise Violation("duplicate", f"number {header.first_number} after {highest}")
                if header.first_number > max(highest, header.settled) + 1:
                    raise Violation("duplicate", f"number {highest + 1} is left out")
                highest = header.last_number

    def _on_confirmed(self, witness: Witness, reply: Confirmed) -> Witness:
        confirmed = dict(witness.confirmed)
        found = {
            entry.header.first_number + i: entry.header.first_sequence + i
            for entry in witness.stable
            if entry.payload is None
            for i in range(entry.header.count)
        }
        for first, count, sequence in reply.runs:
            for i in range(count):
                if found.get(first + i) != sequence + i:
                    raise Violation(
                        "confirm", f"number {first + i} at {sequence + i} is not stable"
                    )
                confirmed[first + i] = sequence + i
        return witness._replace(confirmed=tuple(sorted(confirmed.items())))

    def _on_delivered(self, witness: Witness, reply: Deliver) -> Witness:
        handed = set(witness.handed)
        for piece in reply.deliveries:
            for sequence in range(piece.first, piece.last + 1):
                if sequence in witness.settled:
                    raise Violation("acked", f"{sequence} is handed out after its ack was done")
                if piece.count == 1 and sequence in handed:
                    raise Violation("delivery", f"{sequence} is handed out again with count 1")
                handed.add(sequence)
        held = witness.held + reply.deliveries
        return witness._replace(handed=tuple(sorted(handed)), held=held)

    def _on_settled(self, witness: Witness, master_epoch: int, reply: Settled) -> Witness:
        asked = [(there, request) for there, request, _ in witness.settling]
        if (master_epoch, reply.request) not in asked:
            return witness
        place = asked.index((master_epoch, reply.request))
        piece = witness.settling[place][2]
        rest = witness.settling[:place] + witness.settling[place + 1 :]
        witness = witness._replace(settling=rest)
        if reply.refused:
            return witness
        if ("ack late", piece) in witness.gone and master_epoch == piece.epoch:
            raise Violation("acked", f"{piece} went back, and a late ack of it is taken")
        settled = sorted({*witness.settled, *range(piece.first, piece.last + 1)})
        for sequence in range(piece.first, piece.last + 1):
            if sequence in self.state_at(witness.stable).live:
                raise Violation("acked", f"the ack of {sequence} is told and it lives on")
        return witness._replace(settled=tuple(settled))

    # --- Of one connection --------------------------------------------------------------

    def _on_asked(self, witness: Witness, term: int) -> Witness:
        owner = witness.owner
        if not owner.may_go(term):
            raise Violation("owned", f"term {term} asks to delete it, and its owner is there")
        asked = tuple(sorted({*owner.asked, term}))
        return witness._replace(owner=owner._replace(asked=asked))

    def on_deleted(self, witness: Witness, term: int) -> Witness:
        """The catalog has deleted the queue, which is in this term. Raises Violation."""
        owner = witness.owner
        if not owner.may_go(term):
            raise Violation("owned", f"it is deleted in term {term}, and its owner is there")
        return witness._replace(owner=owner._replace(is_deleted=True))

    def _check_alone(self, witness: Witness, reply: SessionReply) -> None:
        """Nobody else takes from it, and nobody when it goes."""
        match reply.reply:
            case Deliver() if reply.session == STRANGER_SESSION:
                raise Violation("owned", "a stranger is handed its messages")
            case Deliver() if reply.epoch in witness.owner.asked:
                raise Violation("owned", f"term {reply.epoch} hands out, and it is going")
            case Purged() if not reply.reply.why:
                raise Violation("owned", "a stranger purges it")
            case _:
                pass

    # --- Every state --------------------------------------------------------------------

    def check(self, nodes: tuple[int, ...], view: View, witness: Witness) -> None:
        """Hold all nodes of a state against the witness. Raises Violation."""
        in_sync = {(one.node, one.store): one for one in in_sync_ids(view)}
        for number in nodes:
            process = self._processes[number]
            member = in_sync.get((process.name, process.store))
            runs = process.is_up and member == process.member
            is_past = witness.is_open or self._is_behind(process, witness.past)
            has_disk = member is not None and not counts_incarnations(view)
            mark = (number, witness.stable, has_disk, runs, is_past, witness.is_open)
            if mark in self._passed:
                continue
            self._check_node(process, witness.stable, is_past)
            if has_disk and not witness.is_open:
                self._check_disk(process, witness.stable)
            if runs and not witness.is_open:
                self._check_memory(process, witness.stable)
            self._passed.add(mark)

    def _is_behind(self, process: Process, past: int) -> bool:
        """Whether this member has not come to the past that counts."""
        replica = process.replica
        if replica is None or not past:
            return False
        return replica.ring.epoch < past or not replica.ring.repaired

    def state_at(self, stable: tuple[Entry, ...]) -> QueueState:
        """What these ops make of an empty queue."""
        known = self._states.get(stable)
        if known is None:
            known = QueueState.decode(self._encoded_at(stable[:-1]))
            known.apply(stable[-1])
            self._states[stable] = known
        return known

    def _encoded_at(self, stable: tuple[Entry, ...]) -> bytes:
        """The same as bytes."""
        known = self._encoded.get(stable)
        if known is None:
            known = self._encoded[stable] = self.state_at(stable).encode()
        return known

    def _check_disk(self, process: Process, stable: tuple[Entry, ...]) -> None:
        name = process.name
        image = process.found.image(QUEUE)
        log = {entry.lsn: entry for entry in image.entries}
        base = image.state_lsn
        if base > len(stable):
            raise Violation("disk", f"{name} has a state at {base}, stable is {len(stable)}")
        for entry in stable[base:]:
            if log.get(entry.lsn) is not entry:
                raise Violation(
                    "disk",
                    f"{name} has {_name(log.get(entry.lsn))} on disk where "
                    f"{_name(entry)} is stable",
                )
        if image.state is not None:
            if image.state != self._encoded_at(stable[:base]):
                raise Violation("disk", f"{name} has a wrong state at {base}")
            self._check_bodies(process, stable, base)

    def _check_bodies(self, process: Process, stable: tuple[Entry, ...], base: int) -> None:
        """Bodies of what lives in the state on disk and is not ended by the log after it."""
        live = self.state_at(stable).live
        for entry in stable[:base]:
            header = entry.header
            if header.kind == OpKind.PUBLISH and live.within(
                header.first_sequence, header.last_sequence
            ):
                found = process.found.frames.get(header.first_sequence)
                if found is not entry:
                    raise Violation(
                        "disk", f"{process.name} lacks the body of {header.first_sequence}"
                    )

    def _check_memory(self, process: Process, stable: tuple[Entry, ...]) -> None:
        replica = process.replica
        if replica is None:
            return
        ring = replica.ring
        received = ring.log.received
        for handed in process.rail.out:
            # The guard has the copy take it before anything that rests on the log's end.
            for entry in handed.data.entries if handed.kind in MARKED and handed.data else ():
                if entry.lsn == received + 1 and stable[received:][:1] in ((), (entry,)):
                    received += 1
        if received < len(stable):
            raise Violation("memory", f"{process.name} has {received} of {len(stable)} stable ops")
        for entry in ring.log.entries:
            if entry.lsn <= len(stable) and stable[entry.lsn - 1] is not entry:
                raise Violation(
                    "memory",
                    f"{process.name} has {_name(entry)} in its log where "
                    f"{_name(stable[entry.lsn - 1])} is stable",
                )

    def _check_node(self, process: Process, stable: tuple[Entry, ...], is_past: bool) -> None:
        replica = process.replica
        if replica is None:
            return
        ring, state, name = replica.ring, replica.state, process.name
        self._check_invariants(process)
        if is_past:
            return
        if state.applied > len(stable):
            raise Violation("applied", f"{name} applied {state.applied} of {len(stable)} stable")
        if state.encode() != self._encoded_at(stable[: state.applied]):
            raise Violation("applied", f"{name} has another state at {state.applied}")
        if ring.log.stable > len(stable):
            raise Violation("log", f"{name} takes {ring.log.stable} for stable of {len(stable)}")
        if not (ring.repaired and ring.has_state):
            return
        for entry in ring.log.entries:
            if entry.lsn <= ring.log.stable and stable[entry.lsn - 1] is not entry:
                raise Violation("log", f"{name} takes {_name(entry)} for stable")

    def _check_invariants(self, process: Process) -> None:
        replica = process.replica
        assert replica is not None
        ring, state, name = replica.ring, replica.state, process.name
        if ring.log.base + len(ring.log.entries) != ring.log.received:
            raise Violation(
                "invariant", f"{name}: log {ring.log.base}+{len(ring.log.entries)} is not received"
            )
        if any(e.lsn != ring.log.base + i for i, e in enumerate(ring.log.entries, 1)):
            raise Violation("invariant", f"{name}: the log has a gap")
        if ring.log.durable > ring.log.received:
            raise Violation("invariant", f"{name}: durable above received")
        unstable = sum(len(e.frame) for e in ring.log.entries if e.lsn > ring.log.stable)
        if ring.log.unstable_bytes != unstable:
            raise Violation(
                "invariant", f"{name}: {ring.log.unstable_bytes} unstable, not {unstable}"
            )
        missing = replica.transfer.missing
        if any(state.live.within(*piece) != [piece] for piece in missing):
            raise Violation("invariant", f"{name}: misses what does not live")
        if ring.repaired and ring.has_state:
            self._check_durable(process)
        if replica.master is not None:
            attachments = replica.master.attachments
            here = sum(one.connection == OWNER for _, one in attachments.all())
            if attachments.count_of(OWNER) != here:
                counted = attachments.count_of(OWNER)
                raise Violation("invariant", f"{name}: {counted} handles of the owner, not {here}")

    def _check_durable(self, process: Process) -> None:
        """R2: the log on disk agrees with the log in memory up to durable."""
        assert process.replica is not None
        ring = process.replica.ring
        image = process.found.image(QUEUE)
        disk = {entry.lsn: entry for entry in image.entries}
        for entry in ring.log.entries:
            if image.state_lsn < entry.lsn <= ring.log.durable and disk.get(entry.lsn) is not entry:
                raise Violation(
                    "durable",
                    f"{process.name} calls {_name(entry)} durable, its disk has "
                    f"{_name(disk.get(entry.lsn))}",
                )


def _name(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    kind = OpKind(entry.header.kind).name.lower()
    return f"{kind} {entry.lsn} of epoch {entry.epoch}"
