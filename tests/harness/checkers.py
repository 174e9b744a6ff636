"""What must hold of a run, each a checker of its own, in Jepsen's words.

A checker returns sentences; none means that all is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

from attrs import define, field, fields

from harness.cluster import SimulatedCluster
from harness.workload import NEVER_MS, Attempt, Dispatch, Journal
from mirrorq.containers.ranges import RangeSet
from mirrorq.replication.master.limits import Limit, limit_of
from mirrorq.replication.queue_time import KEPT_US
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.producer import LOST, REFUSED
from mirrorq.wire import frames

STATE_BYTES = 256
PRODUCER_BYTES = 96
EPOCH_BYTES = 24
"""Of a queue's state without messages: by itself, and for each producer and epoch."""
REFUSAL_BYTES = 32
"""Of a refusal that its producer may still ask for, beside its text."""
OUTCOME_BYTES = 16
UNSETTLED_COUNT = 6_000
"""Of a batch's confirm that its producer may still ask for: one that ended with no more messages
than this on the way (`bulk`) has not said that it knows them (seed 1916)."""

UNREPORTED_MS = 500
"""Two heartbeats: a report is one old at most when it is sent, and may be lost with its node."""


@define
class Tally:
    """What became of the messages of a run, in Jepsen's words."""

    attempts: int = 0
    """Messages that a producer tried to publish."""
    acknowledged: int = 0
    """Of these, confirmed."""
    refused: int = 0
    """Of these, certainly not stored."""
    repeated: int = 0
    """Of these, not stored, for others have their unique keys."""
    unknown: int = 0
    """Of these, without an outcome that is known: the producer or its node was gone."""
    ok: int = 0
    """Acknowledged and delivered."""
    purged: int = 0
    """Acknowledged and never delivered, as a purge, a deletion, a limit, a time or an unclean
    promotion (which counts it) allows."""
    lost: int = 0
    """Acknowledged and never delivered."""
    unexpected: int = 0
    """Delivered without an attempt, after a refusal, or at another sequence."""
    duplicated: int = 0
    """At two sequences, or first delivered twice."""
    recovered: int = 0
    """Of unknown outcome, and delivered."""
    deliveries: int = 0
    """Redeliveries too."""

    def add(self, other: Tally) -> None:
        for name in (one.name for one in fields(Tally)):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def tally(journal: Journal) -> Tally:
    """Count what a journal holds, after a drain."""
    seen = {dispatch.body for dispatch in journal.deliveries}
    states = Counter(attempt.state for attempt in journal.attempts.values())
    acknowledged = [a for a in journal.attempts.values() if a.state == "acknowledged"]
    missing = len(lost(journal))
    ok = sum(attempt.body in seen for attempt in acknowledged)
    return Tally(
        attempts=len(journal.attempts),
        acknowledged=len(acknowledged),
        refused=states["refused"],
        repeated=states["repeated"],
        unknown=states["unknown"] + states["open"],
        ok=ok,
        purged=len(acknowledged) - ok - missing,
        lost=missing,
        unexpected=len(unexpected(journal)),
        duplicated=len(duplicated(journal)),
        recovered=sum(
            attempt.state in ("unknown", "open") and attempt.body in seen
            for attempt in journal.attempts.values()
        ),
        deliveries=len(journal.deliveries),
    )


def lost(journal: Journal) -> list[str]:
    """P1: every acknowledged message was delivered (after a drain).

    What an applied op has ended as a limit, a time or a purge wants is not lost (where nobody has
    seen the ops: what was put before a purge had its outcome). Nor is what was transient when
    all copies were down, or in a queue that was deleted.
    """
    if journal.is_deleted:
        return []
    seen = {dispatch.body for dispatch in journal.deliveries}
    return [
        f"lost: {attempt.body!r}, acknowledged as sequence {attempt.sequence}"
        for attempt in journal.attempts.values()
        if attempt.state == "acknowledged"
        and attempt.body not in seen
        and not _is_ended(journal, attempt)
    ]


def _is_ended(journal: Journal, attempt: Attempt) -> bool:
    """Whether this message need not be delivered any more."""
    if not attempt.persistent and attempt.put_ms <= journal.cold_ms:
        return True
    if journal.is_past(attempt.put_ms):
        return True  # `uncounted` judges that
    if journal.ended is None:
        return any(attempt.put_ms <= purge.end_ms for purge in journal.purges)
    word, _ = journal.ended.get(attempt.sequence, ("", 0))
    return word not in ("", "acked") or (word == "acked" and attempt.sequence in journal.claimed)


def uncounted(journal: Journal, counted: int) -> list[str]:
    """What an unclean promotion has lost is counted: no more is missing than its masters said.

    A new master counts by what the old one has reported. What was stored after the last report that
    it has heard, or just before, stands in none; a client that is cut off stores late what it puts.

    Args:
        counted: how many messages they say are lost.
    """
    if journal.is_deleted:
        return []
    seen = {dispatch.body for dispatch in journal.deliveries}
    ended = journal.ended or {}
    heard_ms = journal.reported_ms or journal.unclean_ms
    unreported = [
        (min(heard, unclean) - UNREPORTED_MS, unclean)
        for heard, unclean in zip(heard_ms, journal.unclean_ms, strict=True)
    ]
    missing = [
        attempt.body
        for attempt in journal.attempts.values()
        if attempt.state == "acknowledged"
        and attempt.body not in seen
        and not any(
            since_ms <= max(attempt.put_ms, attempt.ended_ms) and attempt.put_ms <= until_ms
            for since_ms, until_ms in unreported
        )
        and ended.get(attempt.sequence, ("acked",))[0] == "acked"
        and (attempt.persistent or attempt.put_ms > journal.cold_ms)
    ]
    if len(missing) <= counted:
        return []
    return [f"uncounted: {len(missing)} are missing, {counted} said to be lost: {missing[:5]}"]


def revived(journal: Journal) -> list[str]:
    """Nothing is handed out after an op that ended it was applied."""
    wrong = []
    for dispatch in journal.deliveries:
        word, ended_ms = (journal.ended or {}).get(dispatch.sequence, ("", NEVER_MS))
        if dispatch.time_ms > ended_ms and not journal.is_past(ended_ms, dispatch.time_ms):
            wrong.append(
                f"revived: sequence {dispatch.sequence} handed out at {dispatch.time_ms} ms, "
                f"{word} at {ended_ms} ms"
            )
    return wrong


def unexpected(journal: Journal) -> list[str]:
    """Nothing is delivered that was never tried, was refused, or has another sequence."""
    wrong = []
    for dispatch in journal.deliveries:
        attempt = journal.attempts.get(dispatch.body)
        if attempt is None or attempt.state in ("refused", "repeated"):
            wrong.append(f"unexpected: {dispatch.body!r} at sequence {dispatch.sequence}")
        elif (
            attempt.state == "acknowledged"
            and attempt.sequence != dispatch.sequence
            and not journal.is_past(attempt.put_ms)
        ):
            wrong.append(
                f"unexpected: {dispatch.body!r} at sequence {dispatch.sequence}, acknowledged "
                f"as {attempt.sequence}"
            )
    return wrong


def duplicated(journal: Journal) -> list[str]:
    """P4: one message stands at one sequence; P3: at most one first delivery of each."""
    wrong = []
    places: dict[bytes, Dispatch] = {}
    for dispatch in journal.deliveries:
        first = places.setdefault(dispatch.body, dispatch)
        times = sorted((first.time_ms, dispatch.time_ms))
        if first.sequence != dispatch.sequence and not journal.is_past(*times):
            wrong.append(
                f"duplicated: {dispatch.body!r} at sequences {first.sequence} and "
                f"{dispatch.sequence}"
            )
    stood: dict[int, Dispatch] = {}
    for dispatch in journal.deliveries:
        first = stood.setdefault(dispatch.sequence, dispatch)
        if first.body == dispatch.body:
            continue
        if journal.is_past(first.time_ms, dispatch.time_ms):
            # The new master had another message there, which had never become stable.
            stood[dispatch.sequence] = dispatch
            continue
        wrong.append(
            f"two bodies at sequence {dispatch.sequence}: {first.body!r}, {dispatch.body!r}"
        )
    firsts = Counter(d.sequence for d in journal.deliveries if d.count == 1)
    wrong += [
        f"{count} deliveries of sequence {sequence} have redelivered=False"
        for sequence, count in firsts.items()
        if count > 1
    ]
    return wrong


def undercounted(journal: Journal) -> list[str]:
    """P3: each delivery of a message has a greater count than all that were handed out before.

    So the one with redelivered=False is the first.
    """
    counts: dict[int, tuple[int, int]] = {}
    wrong = []
    for dispatch in sorted(journal.deliveries, key=lambda d: d.delivery):
        before, then_ms = counts.get(dispatch.sequence, (0, 0))
        if journal.is_past(then_ms, dispatch.time_ms):
            before = min(before, 1)  # how often it came is lost, that it may have come is not
        if dispatch.count <= before:
            wrong.append(
                f"undercounted: sequence {dispatch.sequence} delivered with count "
                f"{dispatch.count} after one with {before}"
            )
        counts[dispatch.sequence] = (max(before, dispatch.count), dispatch.time_ms)
    return wrong


def undone_acks(journal: Journal) -> list[str]:
    """P3: a message whose ack has resolved is never handed out again."""
    wrong = []
    for dispatch in journal.deliveries:
        resolved_ms = journal.resolved_ms.get(dispatch.sequence)
        if resolved_ms is None or journal.is_past(resolved_ms, dispatch.time_ms):
            continue
        if dispatch.time_ms > resolved_ms:
            wrong.append(
                f"sequence {dispatch.sequence} handed out at {dispatch.time_ms} ms, acked at "
                f"{resolved_ms} ms"
            )
    return wrong


def misrefused(journal: Journal) -> list[str]:
    """An ack that was refused did not take effect: its message was handed out again later, or
    something else than an ack has ended it. Who rolls back on a refusal loses nothing (after a
    drain)."""
    if journal.is_deleted:
        return []
    newest: dict[int, tuple[int, int]] = {}
    for dispatch in journal.deliveries:
        before = newest.get(dispatch.sequence, (0, 0))
        newest[dispatch.sequence] = max(before, dispatch.delivery)
    return [
        f"misrefused: {dispatch.consumer}'s ack of sequence {dispatch.sequence}, delivery "
        f"{dispatch.delivery}, was refused, and it never came again"
        for dispatch in journal.deliveries
        if dispatch.acked == "refused"
        and newest[dispatch.sequence] == dispatch.delivery
        and not _is_ended_otherwise(journal, dispatch)
    ]


def _is_ended_otherwise(journal: Journal, dispatch: Dispatch) -> bool:
    """Whether something else than an ack of a consumer may have ended this message."""
    attempt = journal.attempts.get(dispatch.body)
    if attempt is not None and not attempt.persistent and attempt.put_ms <= journal.cold_ms:
        return True
    if journal.is_past(dispatch.time_ms) or dispatch.sequence in journal.claimed:
        return True
    if journal.ended is None:
        return bool(journal.purges)
    return journal.ended.get(dispatch.sequence, ("acked", 0))[0] != "acked"


def early(journal: Journal, clock_gain: int) -> list[str]:
    """Nothing is handed out before its delay is over. Clocks run apart, by so many thousandths at
    most; what wall clocks say, and how they are set, does not matter."""
    wrong = []
    for dispatch in journal.deliveries:
        attempt = journal.attempts.get(dispatch.body)
        delay_ms = attempt.delay_ms if attempt is not None else 0
        if attempt is None or not delay_ms:
            continue
        slack_ms = delay_ms * (clock_gain + 1) // 1000 + KEPT_US // 1000 + 1
        if dispatch.time_ms + slack_ms < attempt.put_ms + delay_ms:
            wrong.append(
                f"early: {dispatch.body!r} put at {attempt.put_ms} ms with a delay of {delay_ms} "
                f"ms, handed out at {dispatch.time_ms} ms"
            )
    return wrong


def repeated(journal: Journal, clock_gain: int) -> list[str]:
    """P4: within its window one message of a unique key is stored, and puts that repeat it get its
    sequence; after the window the key is free. Judged by what certainly lies apart: clocks run
    apart, and the queue's time stands still while nobody has it."""
    places = {one.body: one for one in reversed(journal.deliveries)}
    stored: dict[str, list[tuple[int, Attempt]]] = {}
    by_sequence: dict[int, Attempt] = {}
    for attempt in journal.attempts.values():
        sequence = attempt.sequence if attempt.state == "acknowledged" else 0
        if not sequence and attempt.body in places:
            sequence = places[attempt.body].sequence
        if sequence:
            by_sequence[sequence] = attempt
            stored.setdefault(attempt.unique, []).append((sequence, attempt))
    stored.pop("", None)
    window_ms = journal.window_ms
    slack_ms = window_ms * (clock_gain + 1) // 1000 + KEPT_US // 1000 + 1
    wrong = []
    for found in stored.values():
        found.sort(key=itemgetter(0))
        for (_, before), (_, after) in pairwise(found):
            until_ms = after.ended_ms or NEVER_MS
            if after.body in places:
                until_ms = min(until_ms, places[after.body].time_ms)
            is_within = until_ms + slack_ms < before.put_ms + window_ms
            if is_within and not journal.is_past(before.put_ms):
                wrong.append(
                    f"repeated: {before.unique} stored as {before.body!r} (put at "
                    f"{before.put_ms} ms) and {after.body!r} (by {until_ms} ms)"
                )
    for attempt in journal.attempts.values():
        holder = by_sequence.get(attempt.sequence)
        if attempt.state != "repeated" or holder is None or journal.is_past(holder.put_ms):
            continue
        by_ms = holder.ended_ms if holder.state == "acknowledged" else NEVER_MS
        is_over = attempt.put_ms > by_ms + window_ms + 2 * slack_ms
        if holder.unique != attempt.unique or (is_over and journal.cold_ms < 0):
            wrong.append(
                f"repeated: {attempt.body!r} ({attempt.unique}, put at {attempt.put_ms} ms) is "
                f"said to repeat {holder.body!r} ({holder.unique}, stored by {holder.ended_ms} ms)"
            )
    return wrong


def unpaused(journal: Journal) -> list[str]:
    """Nothing is handed out while the queue is paused, whoever is its master."""
    return [
        f"unpaused: sequence {dispatch.sequence} handed out at {dispatch.time_ms} ms, the queue is "
        f"paused from {span.from_ms} to {span.until_ms} ms"
        for span in journal.pauses
        for dispatch in journal.deliveries
        if span.from_ms < dispatch.time_ms < span.until_ms
        and not journal.is_past(span.from_ms, dispatch.time_ms)
    ]


def unresolved(journal: Journal) -> list[str]:
    """Every confirmation and every ack has ended."""
    wrong = [f"open: {a.body!r}" for a in journal.attempts.values() if a.state == "open"]
    wrong += [f"ack open: {d.sequence}" for d in journal.deliveries if d.acked == "open"]
    return wrong


def unequal(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """Lemma 3: applied states at the same lsn are equal on all copies."""
    by_lsn: dict[int, tuple[str, bytes]] = {}
    wrong = []
    for name in cluster.running:
        replica = cluster.engine(name).replicas.get(queue_id)
        if replica is None:
            continue
        state = replica.state
        known = by_lsn.setdefault(state.applied, (name, state.encode()))
        if known[1] != state.encode():
            wrong.append(f"{name} and {known[0]} differ at lsn {state.applied}")
    return wrong


def undrained(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """An empty, quiet queue holds no message on any disk and no op in any memory; its state
    is as small as its producers and its history allow."""
    wrong = []
    for name in cluster.running:
        files = cluster.nodes[name].disk.queues.get(queue_id)
        if files is not None and files.frames:
            wrong.append(f"undrained: {len(files.frames)} frames on the disk of {name}")
        if files is not None and files.ops:
            wrong.append(f"undrained: {len(files.ops)} ops on the disk of {name}")
        replica = cluster.engine(name).replicas.get(queue_id)
        if replica is None:
            continue
        ring, state = replica.ring, replica.state
        if ring.log.entries or ring.log.bytes or ring.log.unstable_bytes:
            sizes = f"{ring.log.bytes} bytes, {ring.log.unstable_bytes} not stable"
            wrong.append(
                f"undrained: {len(ring.log.entries)} ops ({sizes}) in the memory of {name}"
            )
        size = len(state.encode())
        allowed = STATE_BYTES + PRODUCER_BYTES * len(state.producers)
        allowed += EPOCH_BYTES * len(state.history)
        for producer in state.producers.values():
            if producer.highest - producer.settled <= UNSETTLED_COUNT:
                allowed += OUTCOME_BYTES * len(producer.outcomes)
        told = (o for p in state.producers.values() for o in p.outcomes)
        refusals = [outcome for outcome in told if outcome[2] in (REFUSED, LOST)]
        allowed += sum(REFUSAL_BYTES + len(reason) for _, _, _, reason in refusals)
        if size > allowed:
            wrong.append(f"undrained: the empty state of {name} has {size} bytes, not {allowed}")
    return wrong


def standing(cluster: SimulatedCluster, queue_id: int) -> list[tuple[bytes, bytes]]:
    """(body, properties) of each live message of a queue, as its master's disk has them."""
    master = cluster.master(queue_id)
    if master is None:
        return []
    found: list[tuple[bytes, bytes]] = []
    disk = cluster.nodes[master].disk
    for first, last in cluster.engine(master).replicas[queue_id].state.live:
        for entry in disk.read(queue_id, first, last):
            header = entry.header
            start = max(first - header.first_sequence, 0)
            stop = min(last + 1 - header.first_sequence, header.count)
            columns = frames.split_properties(entry.frame) or [b""] * header.count
            bodies = frames.split(entry.frame)
            found += zip(bodies[start:stop], columns[start:stop], strict=True)
    return found


def misrouted(
    journal: Journal, cluster: SimulatedCluster, queues: Sequence[int], ended: Sequence[bytes] = ()
) -> list[str]:
    """29: each acknowledged message stands once in all of these queues together, wherever it has
    come to by now; those that were acked in the end, `ended`, nowhere."""
    counts: Counter[bytes] = Counter()
    for queue_id in queues:
        counts.update(body for body, _ in standing(cluster, queue_id))
    wrong = [
        f"misrouted: {body!r} stands {counts[body]} times, not {0 if body in ended else 1}"
        for body, attempt in journal.attempts.items()
        if attempt.state == "acknowledged" and counts[body] != (0 if body in ended else 1)
    ]
    strangers = [body for body in counts if body not in journal.attempts]
    return wrong + [f"misrouted: {body!r} from nowhere" for body in strangers]


def unsent(
    journals: Sequence[Journal],
    cluster: SimulatedCluster,
    queue_id: int,
    taken: Journal | None = None,
) -> list[str]:
    """29: what ended to be sent on stands once in the queue that dead letters go to, and nothing
    else does. Of queues whose ops were seen; also when they were deleted since.

    Args:
        taken: what consumers of that queue saw, who have drained it.
    """
    counts = Counter(body for body, _ in standing(cluster, queue_id))
    if taken is not None:
        counts.update(body for body, _ in {(one.body, one.sequence) for one in taken.deliveries})
    cold_ms = cluster.onlooker.colds.get(queue_id, -1)
    wrong = [f"unsent: {body!r} stands {n} times" for body, n in counts.items() if n > 1]
    attempts = {body: attempt for journal in journals for body, attempt in journal.attempts.items()}
    for journal in journals:
        for attempt in journal.attempts.values():
            word, ended_ms = (journal.ended or {}).get(attempt.sequence, ("", NEVER_MS))
            is_there = attempt.body in counts
            if attempt.state != "acknowledged" or (word == "sent on") == is_there:
                continue
            if not is_there and journal.is_deleted and not journal.durable:
                continue  # all copies were down: the queue took its outbox along
            if not is_there and not attempt.persistent and ended_ms <= cold_ms:
                continue  # it arrived, and ended when all copies of that queue were down
            wrong.append(
                f"unsent: {attempt.body!r}, sequence {attempt.sequence}, is "
                f"{word or 'live'} and stands {counts[attempt.body]} times"
            )
    for body in counts:
        if body not in attempts or attempts[body].state == "refused":
            wrong.append(f"unsent: {body!r} from nowhere")
    return wrong


def overfull(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """28: no master has more ready messages than its limit, at any moment of a run.

    What was handed out before does not count: it may have come back above the limit. Of a queue
    whose limit was not lowered while it was longer.
    """
    wrong = [_excess(cluster, queue_id, name) for name in cluster.running]
    return [sentence for sentence in wrong if sentence]


def _limit(cluster: SimulatedCluster, queue_id: int, name: str) -> tuple[Replica, Limit] | None:
    """What limits the queue's ready messages at this node, if it serves the queue."""
    replica = cluster.engine(name).replicas.get(queue_id)
    master = replica.master if replica is not None else None
    limit = limit_of(master.definition) if master is not None and master.active else None
    return None if replica is None or limit is None else (replica, limit)


def _excess(cluster: SimulatedCluster, queue_id: int, name: str) -> str:
    """By how much too much is ready there, "" when it is not."""
    found = _limit(cluster, queue_id, name)
    if found is None:
        return ""
    replica, limit = found
    assert replica.master is not None
    fresh = RangeSet(replica.master.dispatch.ready.levels)
    for first, last in cluster.onlooker.given_out.get(queue_id, RangeSet()):
        fresh.remove(first, last)
    size = sum(replica.state.columns.total(first, last) for first, last in fresh)
    if fresh.count <= limit.count and size <= limit.size:
        return ""
    return (
        f"overfull: {fresh.count} messages of {size} bytes are ready at {name}, the policy says "
        f"{limit.text()}"
    )


@define
class LimitWatch:
    """28, while limits change: a queue that has once kept a limit in a term goes on keeping it.

    From when all that was in the master's log as the limit came is applied: that was judged by
    the limit before.
    """

    cluster: SimulatedCluster
    wrong: list[str] = field(factory=list)
    _kept: dict[tuple[int, str, int], tuple[Limit, int, bool]] = field(factory=dict)
    """(queue, node, term) -> the limit, the master's last lsn as it came, whether it was kept."""

    def look(self, queue_ids: Sequence[int]) -> None:
        """Judge this moment."""
        for queue_id in queue_ids:
            for name in self.cluster.running:
                self._look_at(queue_id, name)

    def _look_at(self, queue_id: int, name: str) -> None:
        found = _limit(self.cluster, queue_id, name)
        if found is None:
            # Without a limit it may grow: the same one may come back later.
            for key in [key for key in self._kept if key[:2] == (queue_id, name)]:
                del self._kept[key]
            return
        replica, limit = found
        assert replica.master is not None
        key = (queue_id, name, replica.master.master_epoch)
        known, lsn, is_kept = self._kept.get(key, (None, 0, False))
        if known != limit:
            lsn, is_kept = replica.ring.log.received, False
        if replica.state.applied >= lsn:
            excess = _excess(self.cluster, queue_id, name)
            if is_kept and excess:
                self.wrong.append(f"{excess} (at {self.cluster.now_ms} ms)")
            is_kept = not excess
        self._kept[key] = (limit, lsn, is_kept)


def undeleted(cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """Nothing is left of a queue that was deleted: no copy, no frame, no op."""
    wrong = []
    for name in cluster.running:
        if queue_id in cluster.engine(name).replicas:
            wrong.append(f"undeleted: {name} has a copy of queue {queue_id}")
        files = cluster.nodes[name].disk.queues.get(queue_id)
        if files is not None and (files.frames or files.ops or files.state is not None):
            wrong.append(f"undeleted: the disk of {name} has parts of queue {queue_id}")
    return wrong


def all_of_journal(journal: Journal) -> list[str]:
    """What producers and consumers saw, after a drain to the last message."""
    return [
        *lost(journal),
        *unexpected(journal),
        *duplicated(journal),
        *undercounted(journal),
        *undone_acks(journal),
        *misrefused(journal),
        *revived(journal),
        *unpaused(journal),
        *unresolved(journal),
    ]


def all_of(journal: Journal, cluster: SimulatedCluster, queue_id: int) -> list[str]:
    """Every checker of one queue, after a drain to the last message."""
    return [
        *all_of_journal(journal),
        *unequal(cluster, queue_id),
        *undrained(cluster, queue_id),
        *cluster.onlooker.wrong,
        *cluster.onlooker.misordered(),
    ]
