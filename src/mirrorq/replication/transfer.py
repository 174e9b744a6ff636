"""R7: a joining member gets the state and bodies that it lacks, and a member in sync gives them.

A joiner whose left neighbour still has the missing ops in its log needs no transfer. A joiner that
is further behind takes the *applied* state of one member in sync at some lsn S. Ops after S come
along the ring as for every member. Bodies of live messages of the state that are not on the
joiner's disk are fetched in chunks while the queue goes on. The state replaces the joiner's state
and never merges with it. A frame fills only a place that lives in the joiner's applied state, so a
late body revives no message.

The disk notes beside the state which sequences a copy may lack, in the same write that changes
them: a new state, or written frames. So a transfer continues after it was cancelled, or after the
joiner was killed. Bodies that came along the ring meanwhile are not fetched again. Sequence and
(epoch, lsn) name the same frame here. Everything up to S is stable, a stable op is never cut, and
so its sequences are never given again.

*Natural drain* follows the same rule: a message that is acked before its body arrived is no longer
missing. A joiner that may not fetch (ha-sync-mode manual) comes in sync by natural drain alone.

Several requests are open at once, each for a span of sequences, all at one member in sync, mirrors
before the master. When it does not answer, the next member takes over. The spans of one *pass* go
from the first missing sequence to the last. The next pass asks for the rest: the donor no longer
had it, or an answer was lost.

*Mending* follows the same rule at a member in sync. A damaged frame on its disk is missing from
then on: it is noted as lacking, asked of the other members, joining members included, and written
in the place of the damaged frame. A frame that no member has whole is *lost* for the time being. It
is asked for again and again, ever more rarely, and at once when a member comes. Every joiner learns
which frames are lost, and waits for lost frames no more than other members.

Invariants:
1. `missing` holds sequences that live in the own applied state and are not whole on the own disk.
2. a missing sequence is in `lacking` or in a write being made.
3. an answer counts only under the number and the epoch of an open request.
4. a sequence in `damaged` or `lost` is in `missing`; all other missing sequences are in `sought`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from attrs import frozen

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol import views
from mirrorq.protocol.effects import Page, ReplicaEffects
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import FetchFrames, FrameChunk, TransferState
from mirrorq.protocol.views import View
from mirrorq.replication.donor import Incoming
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState

# Pace of a transfer, for an estimate of its duration. No decision depends on it.
WINDOW_MS = 5000
"""The pace is measured over this time."""
SAMPLE_MS = 200


class Meter(msgspec.Struct, gc=False, eq=False):
    """Counts messages and bytes that have come."""

    messages: int = 0
    bytes: int = 0
    _samples: Fifo[tuple[int, int]] = msgspec.field(default_factory=Fifo)
    """(time, messages until then)."""

    def restart(self, now_ms: int) -> None:
        """Begin after a pause without requests: the pause does not count."""
        self._samples.clear()
        self._samples.append((now_ms, self.messages))

    def add(self, now_ms: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append((now_ms, self.messages))
            while len(samples) > 2 and now_ms - samples[1][0] >= WINDOW_MS:
                samples.popleft()

    def bytes_of(self, messages: int) -> int:
        """Estimated bytes of so many messages, by the average until now."""
        return self.bytes * messages // self.messages if self.messages else 0

    def ms_for(self, now_ms: int, messages: int) -> int:
        """Estimated time for so many messages; 0 when unknown."""
        if not self._samples:
            return 0
        began_ms, before = self._samples[0]
        came = self.messages - before
        gone_ms = now_ms - began_ms
        return max(messages * gone_ms // came, 1) if came > 0 and gone_ms > 0 else 0


RETRY_MS = 1000
"""A donor that has not answered with its state for this long is replaced by the next donor."""
FETCH_RETRY_MS = 3000
"""A donor that has sent no chunk for this long is replaced. Chunks may be slow on a slow link."""
AGAIN_MS = 50
"""Delay of a new request, after a state that was too old, and after a pass with a rest."""
LOST_MS = 2000
LOST_MS_MAX = 60_000
"""Delay of a new request for lost bodies. It doubles from `LOST_MS` up to this."""
FETCHES_MAX = 4
"""Open requests: enough to fill a link that has latency. With the size of a chunk it bounds the
memory of a transfer on both sides."""
GAP_BYTES = 64 * 1024
"""A request ends at a gap of about so many bytes that are not missing."""
REQUEST_RANGES = 1024
"""Most missing ranges that a request spans: a step walks all ranges of its requests."""
CHUNKS_PER_S = 8
CHUNK_BYTES_MIN = 4096
"""With a limit on the pace chunks are smaller, down to this."""
ANSWER_FACTOR = 2
"""An answer may have this many times the bytes of a chunk: sizes are guessed."""


Retained = Callable[[], Mapping[tuple[int, int], Page] | None]
"""Gives pages on this disk of incomplete states, or None."""


@frozen
class Fetch:
    """An open request for the frames that begin in first to last."""

    donor: MemberId
    first: int
    last: int
    is_continued: bool
    """True if another request covers the sequences before `first`, and a frame across the edge."""


class Transfer:
    """The joining side of one member."""

    __slots__ = (
        "_asked_to", "_barren_count", "_bytes_per_s", "_cache", "_chunk_bytes", "_donor_turn",
        "_fetches", "_has_taken", "_heard_ms", "_incoming", "_is_in_sync", "_landing", "_left_over",
        "_lost_ms", "_mended", "_message_bytes", "_number", "_paced_ms", "_pass_took", "_state",
        "_state_number", "_wait_until_ms", "damaged", "fetched_count", "judged", "lacking",
        "lacking_changed", "lost", "me", "meter", "missing", "queue_id", "sought",
    )  # fmt: skip
    """A dict of so many fields is 1.6 kB, for each copy on a node."""

    def __init__(
        self,
        me: MemberId,
        queue_id: int,
        chunk_bytes: int,
        bytes_per_s: int = 0,
        cache: PageCache | None = None,
    ) -> None:
        self.me = me
        self.queue_id = queue_id
        self._cache = cache
        self.missing = RangeSet()
        """Live sequences with bodies that are not whole on this disk."""
        self.damaged = RangeSet()
        """Missing sequences with damaged frames on this disk."""
        self.lost = RangeSet()
        """Missing sequences with bodies that no available member has."""
        self.sought = RangeSet()
        """Missing sequences with bodies that another member may have."""
        self.judged: Fifo[tuple[RangeSet, bool]] = Fifo()
        """Sequences that have become lost (True), or not lost (False), since the last look."""
        self.lacking = RangeSet()
        """Stretches that hold all missing sequences, once the writes made so far are on disk. Few
        ranges, which may include ended messages, but no live message on the disk."""
        self.lacking_changed = False
        """True if `lacking` has changed since the last write."""
        self.fetched_count = 0
        self.meter = Meter()
        self._chunk_bytes = chunk_bytes
        if bytes_per_s:
            # Several chunks a second, so that the pace is even.
            self._chunk_bytes = min(chunk_bytes, max(bytes_per_s // CHUNKS_PER_S, CHUNK_BYTES_MIN))
        self._bytes_per_s = bytes_per_s
        self._paced_ms = 0
        """With a limit on the pace: time of the next request."""
        self._message_bytes = 0
        """Average bytes of a message in the last chunk; 0 before the first chunk."""
        self._number = me.incarnation << 20
        self._state_number = 0
        """Number of the open request for a state; 0: no request."""
        self._state = QueueState()
        """Applied state of this copy."""
        self._incoming: Incoming | None = None
        """Received parts of the state that was requested last. None: no parts that count. Most
        copies have none, to save memory."""
        self._fetches: dict[int, Fetch] = {}
        self._left_over: Fifo[tuple[int, int, bool]] = Fifo()
        """(first, last, is continued) of spans that an answer left out."""
        self._asked_to = 0
        """This pass has requested missing sequences up to here."""
        self._pass_took = False
        """True if this pass has brought frames."""
        self._heard_ms = 0
        """Time of the donor's last answer, or of the first request."""
        self._donor_turn = 0
        self._is_in_sync = False
        self._barren_count = 0
        """Donors in succession that had none of the missing bodies."""
        self._lost_ms = LOST_MS
        self._mended = RangeSet()
        """Sequences that were damaged and written again in this epoch."""
        self._wait_until_ms = 0
        self._landing: Fifo[tuple[int, Range]] = Fifo()
        self._has_taken = False
        """True if a chunk was accepted in this step, and is not yet in a write."""

    def compute_missing(self, state: QueueState, lacking: RangeSet) -> None:
        """Compute the missing sequences of a loaded or received state."""
        self._state = state
        self.lacking = lacking
        self.lacking_changed = True
        self.missing = state.needed_set(lacking)
        for _, (first, last) in self._landing:
            for piece in state.needed(first, last):
                self.missing.add(*piece)
        self.damaged, self.lost = self._of_missing(self.damaged), self._of_missing(self.lost)
        self.sought = self.missing.copy()
        for first, last in self.lost:
            self.sought.remove(first, last)
        self.forget()
        self.lacking = RangeSet(p for p in lacking if self.missing.around(*p) is not None)

    def _of_missing(self, known: RangeSet) -> RangeSet:
        """Missing parts of these ranges."""
        return RangeSet(piece for one in known for piece in self.missing.within(*one))

    def start_over(self) -> None:
        """Forget everything, including writes on their way: this copy is of another past."""
        self._landing.clear()
        self._has_taken = False
        self.compute_missing(QueueState(), RangeSet())

    @property
    def is_asking(self) -> bool:
        """Return true if a state is requested."""
        return self._state_number > 0

    @property
    def is_receiving(self) -> bool:
        """Return true if parts of a requested state have come."""
        return self._state_number > 0 and self._asked_state.count > 0

    def take_pages(self) -> tuple[int, list[Page]]:
        """(number of the request for a state, pages to be written), each page once."""
        incoming = self._incoming
        return (0, []) if incoming is None else (incoming.number, incoming.take_fresh())

    def on_staged(self, now_ms: int, count: int) -> None:
        """Note that `count` of the written pages are on the disk."""
        if self._incoming is not None:
            if self._incoming.is_landing:
                self._heard_ms = now_ms
            self._incoming.on_staged(count)

    def drop_state(self) -> None:
        """Drop the received parts of a state, and wait for no more."""
        self._state_number = 0
        self._incoming = None

    @property
    def is_complete(self) -> bool:
        """Return true if no missing body can be had from others. (Lost bodies do not count.)"""
        return not self.sought

    def note_damaged(self, ranges: Iterable[Range]) -> None:
        """At the start: note missing sequences with damaged frames on the disk."""
        found = [piece for one in ranges for piece in self.missing.within(*one)]
        self.damaged = RangeSet(found)
        # Ranges known before are in the store already.
        self.lacking_changed = bool(found)

    def on_damage(self, now_ms: int, pieces: Iterable[Range]) -> list[Range]:
        """Note damaged frames with these needed sequences. No other sequence from the first to the
        last is needed. Returns the newly missing ranges."""
        fresh = RangeSet(pieces)
        known = RangeSet(piece for one in fresh for piece in self.missing.within(*one))
        for piece in known:
            fresh.remove(*piece)
        if not fresh:
            return []
        relapsed = [piece for one in fresh for piece in self._mended.within(*one)]
        for first, last in fresh:
            for kept in (self.missing, self.damaged, self.sought):
                kept.add(first, last)
        self._note_lacking(fresh, known)
        self._barren_count = 0
        self._wait_until_ms = 0
        if relapsed:
            # The disk loses written frames: without a wait, mending would go on without end.
            self._lose(RangeSet(relapsed))
            self._wait_for_lost(now_ms)
        return list(fresh)

    def _note_lacking(self, fresh: RangeSet, known: RangeSet) -> None:
        """Note fresh missing ranges as lacking. Sequences between them are dead, or known to be
        missing and perhaps on their way to the disk. So few stretches are enough."""
        self.lacking_changed = True
        before = fresh.first
        for first, last in fresh:
            start = first if known.around(before, first) is not None else before
            self.lacking.add(start, last)
            before = last + 1

    def _lose(self, found: RangeSet) -> None:
        """Note sought sequences as lost."""
        if not found:
            return
        for first, last in found:
            self.lost.add(first, last)
            self.sought.remove(first, last)
        self.judged.append((found, True))

    def _lose_all(self) -> None:
        """Note all sought sequences as lost."""
        if self.sought:
            self.judged.append((self.sought, True))
            self.lost, self.sought = self.missing.copy(), RangeSet()

    def _wait_for_lost(self, now_ms: int) -> None:
        self._wait_until_ms = now_ms + self._lost_ms
        self._lost_ms = min(2 * self._lost_ms, LOST_MS_MAX)

    def _remove(self, first: int, last: int) -> None:
        """Note that the sequences are not missing any more."""
        self.missing.remove(first, last)
        self.sought.remove(first, last)
        if self.damaged:
            self.damaged.remove(first, last)
        found = self.lost.within(first, last) if self.lost else ()
        if found:
            self.lost.remove(first, last)
            self.judged.append((RangeSet(found), False))

    def given_up(self) -> RangeSet:
        """Missing sequences that are in no write on its way: no disk will ever hold their bodies,
        if no member can be asked."""
        rest = self.missing.copy()
        for _, piece in self._landing:
            rest.remove(*piece)
        return rest

    def forget(self) -> None:
        """Forget all requests: a new epoch voids them."""
        self.drop_state()
        self._wait_until_ms = 0
        self._barren_count = 0
        self._lost_ms = LOST_MS
        self._mended = RangeSet()
        self._restart_pass()

    def _restart_pass(self) -> None:
        self._fetches.clear()
        self._left_over.clear()
        self._asked_to = 0
        self._pass_took = False

    def on_link_lost(self, node: str) -> None:
        """Repeat requests to this node: they or their answers may be lost. A node that came back
        may have lost bodies."""
        if self.lost:
            self._wait_until_ms = 0
        if any(fetch.donor.node == node for fetch in self._fetches.values()):
            self._restart_pass()

    def on_no_room(self, now_ms: int) -> None:
        """Ask later again for a chunk that had no room on the disk."""
        self._has_taken = False
        self._wait_until_ms = now_ms + RETRY_MS

    def on_ended(self, ranges: tuple[Range, ...]) -> None:
        """Natural drain: sequences that the applied state no longer holds are not missing."""
        if self.missing:
            for first, last in ranges:
                self._remove(first, last)
            if not self.missing:
                self._landing.clear()
                self.lacking_changed = self.lacking_changed or bool(self.lacking)
                self.lacking = RangeSet()

    def _prune(self, pieces: Iterable[Range]) -> None:
        """Remove lacking ranges beside these pieces if no sequence in them is missing."""
        for first, last in pieces:
            for edge in (first - 1, last + 1):
                beside = self.lacking.around(edge, edge)
                if beside is not None and self.missing.around(*beside) is None:
                    self.lacking.remove(*beside)

    # --- Requests -----------------------------------------------------------------------

    def pursue(
        self,
        now_ms: int,
        view: View,
        has_state: bool,
        may_fetch: bool,
        count_max: int,
        out: ReplicaEffects,
        retained: Retained = dict,
    ) -> int | None:
        """Send the requests that are due; return the time of the next look.

        Args:
            may_fetch: true if bodies are fetched too, not only the state.
            count_max: most missing messages that one request names.
            retained: called before a state is requested. Returns None while pages go to disk.
        """
        self._give_up(now_ms)
        self._is_in_sync = views.is_in_sync(view, self.me)
        donors = self._donors(view, has_state)
        if self._is_in_sync and self._barren_count >= len(donors) and not self._landing:
            self._lose_all()
            self._barren_count = 0
            if donors:
                self._wait_for_lost(now_ms)
        if now_ms < self._wait_until_ms:
            return self._wait_until_ms
        if not donors:
            return None
        donor = donors[self._donor_turn % len(donors)]
        if not has_state:
            if not self._state_number and not self._begin_state(now_ms, retained()):
                return None
            incoming = self._asked_state
            for part in incoming.due():
                request = incoming.request(self.queue_id, view.epoch, incoming.number, part)
                out.send.append((donor, request))
            return None if incoming.is_landing else self._heard_ms + RETRY_MS
        if may_fetch:
            self._fetch(now_ms, view, donor, count_max, out)
            if self.missing and now_ms < self._paced_ms:
                return self._paced_ms
        if self._fetches:
            return self._heard_ms + FETCH_RETRY_MS
        return self._wait_until_ms if now_ms < self._wait_until_ms else None

    @property
    def _asked_state(self) -> Incoming:
        """Received parts of the state that is requested now."""
        assert self._incoming is not None
        return self._incoming

    def _begin_state(self, now_ms: int, pages: Mapping[tuple[int, int], Page] | None) -> bool:
        """Begin to request a state, unless pages of the last state are on their way to the disk."""
        if pages is None:
            return False
        self._number += 1
        self._state_number = self._number
        self._heard_ms = now_ms
        self._incoming = Incoming(self._state, self._number, self.queue_id, self._cache, pages)
        return True

    def _give_up(self, now_ms: int) -> None:
        """Replace a donor that does not answer."""
        waited_ms = now_ms - self._heard_ms
        is_late = waited_ms >= RETRY_MS
        if self._state_number and is_late and not self._asked_state.is_landing:
            self.drop_state()
            self._donor_turn += 1
        if self._fetches and waited_ms >= FETCH_RETRY_MS:
            self._restart_pass()
            self._donor_turn += 1
            self._barren_count += 1

    def _fetch(
        self, now_ms: int, view: View, donor: MemberId, count_max: int, out: ReplicaEffects
    ) -> None:
        if not self._asked_to and (self._landing or self._has_taken):
            return  # A pass begins with nothing on the way to the disk: no double requests.
        # The size of messages is unknown before the first chunk.
        fetches_max = FETCHES_MAX if self._message_bytes else 1
        while len(self._fetches) < fetches_max and now_ms >= self._paced_ms:
            piece = self._next_piece(count_max)
            if piece is None:
                if self._end_pass(now_ms):
                    continue
                return
            if not self._fetches:
                self._heard_ms = now_ms
                if not self._asked_to:
                    self.meter.restart(now_ms)
            self._number += 1
            fetch = self._fetches[self._number] = Fetch(donor, *piece)
            request = FetchFrames(
                self.queue_id,
                view.epoch,
                self._number,
                fetch.first - 1,
                fetch.last,
                ANSWER_FACTOR * self._chunk_bytes,
                fetch.is_continued,
            )
            out.send.append((donor, request))

    def _next_piece(self, count_max: int) -> tuple[int, int, bool] | None:
        """Next span to request; None when all has been requested."""
        size = self._message_bytes
        count = min(count_max, max(self._chunk_bytes // size, 1) if size else count_max)
        gap = GAP_BYTES // size if size else GAP_BYTES
        while self._left_over:
            first, last, is_continued = self._left_over.popleft()
            found = self.missing.take_after(first - 1, count, gap, REQUEST_RANGES)
            if found is None or found[0] > last:
                continue
            if found[1] < last:
                self._left_over.appendleft((found[1] + 1, last, True))
            return found[0], min(found[1], last), is_continued and found[0] == first
        found = self.missing.take_after(self._asked_to, count, gap, REQUEST_RANGES)
        if found is None:
            return None
        is_continued = 0 < self._asked_to == found[0] - 1
        self._asked_to = found[1]
        return (*found, is_continued)

    def _end_pass(self, now_ms: int) -> bool:
        """End a pass when its frames are on disk. Returns true if the next begins at once."""
        if self._fetches or self._landing or self._has_taken or not self.missing:
            return False
        took = self._pass_took
        self._restart_pass()
        if took:
            self._barren_count = 0
        else:
            # The messages have ended at the donor, and the ops are on the way. Or the donor's
            # frames are damaged, and another donor has them.
            self._donor_turn += 1
            self._barren_count += 1
            self._wait_until_ms = now_ms + min(AGAIN_MS * self._barren_count, LOST_MS)
        return took

    def _donors(self, view: View, has_state: bool) -> list[MemberId]:
        """Donors in turn: members in sync, mirrors before the master. A member in sync may also ask
        joining members for bodies."""
        in_sync = views.in_sync_ids(view)
        donors = [member for member in reversed(in_sync) if member != self.me]
        if has_state and self._is_in_sync:
            donors += views.joining_ids(view)
        return donors

    # --- Answers ------------------------------------------------------------------------

    def accept_state(
        self, now_ms: int, message: TransferState, epoch: int, received: int
    ) -> QueueState | None:
        """Return the received state after its last part; None for other answers."""
        mine = self._state_number and message.number == self._state_number
        if not mine or message.epoch != epoch:
            return None
        self._heard_ms = now_ms
        if message.lsn < received:
            self.drop_state()
            self._wait_until_ms = now_ms + AGAIN_MS
            return None
        try:
            state = self._asked_state.add_part(message)
        except ValueError:
            self.drop_state()
            self._donor_turn += 1
            self._wait_until_ms = now_ms + RETRY_MS
            return None
        if state is not None:
            self._state_number = 0
        return state

    def accept_chunk(
        self, now_ms: int, message: FrameChunk, epoch: int, state: QueueState
    ) -> tuple[Entry, ...] | None:
        """Return frames to write now; their sequences stay missing until `on_written`."""
        fetch = self._fetches.get(message.number)
        if fetch is None or message.epoch != epoch:
            return None
        del self._fetches[message.number]
        self._heard_ms = now_ms
        if self._bytes_per_s:
            size = sum(len(entry.frame) for entry in message.entries)
            self._paced_ms = max(self._paced_ms, now_ms) + size * 1000 // self._bytes_per_s
        if fetch.first <= message.upto_sequence < fetch.last:
            self._left_over.append((message.upto_sequence + 1, fetch.last, True))
        for first, last in () if self._is_in_sync else message.lost:
            self._lose(RangeSet(self.sought.within(first, last)))
        wanted = tuple(self._wanted(message.entries, state))
        if wanted:
            self._pass_took = self._has_taken = True
            self.fetched_count += len(wanted)
            count = sum(entry.header.count for entry in wanted)
            size = sum(len(entry.frame) for entry in wanted)
            self._message_bytes = size // count
            self.meter.add(now_ms, count, size)
        return wanted

    def _wanted(self, entries: Iterable[Entry], state: QueueState) -> Iterator[Entry]:
        """Entries with a missing sequence, from the history that the state knows."""
        # Neighbours mostly share an epoch and a missing range, which are looked up once.
        first_epoch, last_epoch, after, upto = 0, 0, 0, 0
        first_missing, last_missing = 1, 0
        for entry in entries:
            header = entry.header
            if not after < header.lsn <= upto:
                first_epoch, last_epoch, after, upto = state.epoch_span(header.lsn)
            if entry.payload is not None or not first_epoch <= header.epoch <= last_epoch:
                continue
            first = header.first_sequence
            last = first + header.count - 1
            if not first_missing <= first <= last <= last_missing:
                missing = self.missing.around(first, last)
                if missing is None:
                    continue
                first_missing, last_missing = missing
            yield entry

    def on_writing(self, number: int, entries: tuple[Entry, ...]) -> None:
        """Note that these frames go to disk in write `number`, with the new `lacking`."""
        self._has_taken = False
        pieces = _pieces(entries)
        for first, last in pieces:
            self._landing.append((number, (first, last)))
            self.lacking.remove(first, last)
        self.lacking_changed = True
        self._prune(pieces)

    def take_lacking(self) -> tuple[Range, ...] | None:
        """Ranges that this step's write notes as lacking; None without a change."""
        if not self.lacking_changed:
            return None
        self.lacking_changed = False
        return tuple(self.lacking)

    def on_written(self, number: int) -> list[Range]:
        """Note that this write and all before are on disk. Returns the mended ranges."""
        mended: list[Range] = []
        while self._landing and self._landing[0][0] <= number:
            first, last = self._landing.popleft()[1]
            for piece in self.damaged.within(first, last):
                mended.append(piece)
                self._mended.add(*piece)
            self._remove(first, last)
        return mended


def _pieces(entries: tuple[Entry, ...]) -> list[Range]:
    """The sequences of frames. Neighbours are joined to one range."""
    pieces: list[Range] = []
    for entry in entries:
        first, last = entry.header.first_sequence, entry.header.last_sequence
        if pieces and pieces[-1][1] == first - 1:
            first = pieces.pop()[0]
        pieces.append((first, last))
    return pieces
