"""What somebody should know of a node before it hurts: a state machine fed by measurements. Pure.

Each alarm is raised when its measure has been bad for a while, and cleared when it has been well
for a while; between bad and well lies a gap. So a measure at the edge raises one alarm, not a
hundred.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, frozen

ADVICE = {
    "store_full": "consume and ack messages, or raise store_bytes_max",
    "disk_low": "make space on the disk of the store",
    "no_quorum": "start more nodes, or mend the network between them: nothing is confirmed here",
    "last_copy": "start the other nodes, or let a copy synchronise: see status().warnings",
    "damaged": "look at the disk, and run `mirrorq verify` on this store or a backup of it; what "
    "other nodes have is fetched from them by itself: see status().warnings and docs/operations.md",
    "unsendable": "it is sent again and again and never arrives: drain the queue, or raise "
    "frame_bytes_max on all nodes",
    "slow_disk": "look at the disk: each confirm waits for it",
    "clock_jump": "look at time synchronisation: times of messages follow this clock, slowly",
    "spooled": "bring back what is missing: they are safe on this disk, and are sent by themselves",
    "set_aside": "read them with SpooledQueue.set_aside(), then put them again or drop_set_aside()",
    "starved": "give the process more CPU, or keep the host application's C code from holding the "
    "GIL: run the node as a process of its own",
}
"""Name -> what to do."""

GIB = 1 << 30
STORE_RATIO = 0.85
STORE_RATIO_WELL = 0.75
DISK_BYTES = GIB
"""Free bytes below which it is low; on a small disk a part of it."""
DISK_PART = 20
DISK_WELL_FACTOR = 1.25
QUORUM_MS = 1000
"""A pause shorter than this is an election."""
COPY_MS = 5000
"""A mirror that restarts is back sooner."""
COMMIT_MS = 500
COMMIT_WELL_MS = 100
JUMP_MS = 1000
LATE_FACTOR = 2
"""A node thread that is late by failure_ms divided by this is on its way to be taken for dead."""
LATE_WELL_FACTOR = 10
SPOOLED_S = 30
"""A change of masters, or a restart of what a spool sends to, is over sooner."""
DAMAGE_WELL_MS = 10_000
"""Damage that was mended at once is told all the same, for so long."""
QUIET_MS = 60_000
"""What comes and goes in gusts is over when nothing of it came for so long."""
NAMES_MAX = 3


@frozen
class Measures:
    """What was measured since the last look."""

    now_ms: int
    """By the clock that never jumps."""
    wall_ms: int
    """By the wall clock."""
    store_used: int
    """Bytes."""
    store_max: int
    disk_free: int
    """Bytes; below 0: not known."""
    disk_total: int
    is_paused: bool
    last_copies: tuple[str, ...]
    """Queues mastered here that want more copies and have one in sync."""
    damaged: tuple[str, ...]
    """Queues of which something on this disk is not as it was written."""
    damage_count: int
    """Frames that were found to be so since the last look, mended ones too."""
    unsendable: tuple[str, ...]
    """Messages that were too large to be sent lately, each in words."""
    commit_ms: int
    """The longest commit."""
    spooled: int
    """Messages in this node's spools."""
    spooled_s: int
    """How long the oldest of them has waited."""
    spooled_why: str
    """Why they are not being sent; "" when they are."""
    set_aside: int
    """Messages that the spools' queues refused, or that are damaged."""
    late_ms: int
    """By how much the node thread came late at most."""
    failure_ms: int


@frozen
class Alarm:
    """An alarm that is raised at one node."""

    name: str
    """Which alarm, as docs/monitoring.md lists them."""
    since_ms: int
    """When it was raised, in milliseconds of the node's steady clock."""
    text: str
    """What happened, with values, and what to do."""


@define
class _State:
    """Of one rule: the alarm, while it is raised, and since when the measure says otherwise."""

    alarm: Alarm | None = None
    turned_ms: int | None = None
    """Since when the measure is on the other side."""


class Alarms:
    """All alarms of one node, raised or not. The node thread steps it; any thread may read
    `raised`."""

    def __init__(self) -> None:
        self._states = {rule.name: _State() for rule in _RULES}
        self._offset_ms: int | None = None
        """Wall clock less steady clock."""

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """Those that are raised now, in the order of `ADVICE`."""
        return tuple(s.alarm for s in self._states.values() if s.alarm is not None)

    def step(self, measures: Measures) -> tuple[list[Alarm], list[Alarm]]:
        """Judge what was measured; return what is raised by it, and what is over."""
        jump_ms = self._jump(measures)
        raised: list[Alarm] = []
        over: list[Alarm] = []
        for rule in _RULES:
            state = self._states[rule.name]
            is_up = state.alarm is not None
            what = rule.judge(measures, jump_ms, is_up)
            if bool(what) is is_up:
                state.turned_ms = None
                continue
            if state.turned_ms is None:
                state.turned_ms = measures.now_ms
            patience_ms = rule.well_ms if is_up else rule.bad_ms
            if measures.now_ms - state.turned_ms < patience_ms:
                continue
            state.turned_ms = None
            if state.alarm is not None:
                over.append(state.alarm)
                state.alarm = None
            else:
                text = f"{what}: {ADVICE[rule.name]}"
                state.alarm = Alarm(rule.name, measures.now_ms, text)
                raised.append(state.alarm)
        return raised, over

    def _jump(self, measures: Measures) -> int:
        """By how much the wall clock was set since the last look."""
        offset_ms = measures.wall_ms - measures.now_ms
        before, self._offset_ms = self._offset_ms, offset_ms
        return 0 if before is None else offset_ms - before


@frozen
class _Rule:
    """What raises one alarm, and for how long it must be so, or be over."""

    name: str
    judge: Callable[[Measures, int, bool], str]
    """(measures, jump, is raised) -> what is bad, "" when nothing is."""
    bad_ms: int = 0
    """Bad for so long: raised."""
    well_ms: int = 0


def _store_full(measures: Measures, jump_ms: int, is_up: bool) -> str:
    ratio = measures.store_used / measures.store_max
    if ratio < (STORE_RATIO_WELL if is_up else STORE_RATIO):
        return ""
    return (
        f"the store has {measures.store_used} bytes in use, {100 * ratio:.0f} % of "
        f"store_bytes_max {measures.store_max}"
    )


def _disk_low(measures: Measures, jump_ms: int, is_up: bool) -> str:
    limit = min(DISK_BYTES, measures.disk_total // DISK_PART)
    wanted = limit * DISK_WELL_FACTOR if is_up else limit
    if measures.disk_free < 0 or measures.disk_free >= wanted:
        return ""
    return f"the disk of the store has {measures.disk_free} bytes free, fewer than {limit}"


def _no_quorum(measures: Measures, jump_ms: int, is_up: bool) -> str:
    return "no contact with a majority of the cluster" if measures.is_paused else ""


def _last_copy(measures: Measures, jump_ms: int, is_up: bool) -> str:
    names = measures.last_copies
    if not names:
        return ""
    shown = ", ".join(map(repr, names[:NAMES_MAX]))
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"this node has the only copy in sync of {shown}{more}"


def _damaged(measures: Measures, jump_ms: int, is_up: bool) -> str:
    names = measures.damaged
    if names:
        shown = ", ".join(map(repr, names[:NAMES_MAX]))
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        return f"the disk has damaged bytes in what is held of queue {shown}{more}"
    if measures.damage_count:
        return f"{measures.damage_count} damaged frames were found on the disk"
    return ""


def _unsendable(measures: Measures, jump_ms: int, is_up: bool) -> str:
    found = measures.unsendable
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"too large to be sent: {found[0]}{more}" if found else ""


def _slow_disk(measures: Measures, jump_ms: int, is_up: bool) -> str:
    if measures.commit_ms < (COMMIT_WELL_MS if is_up else COMMIT_MS):
        return ""
    return f"a commit took {measures.commit_ms} ms"


def _clock_jump(measures: Measures, jump_ms: int, is_up: bool) -> str:
    return f"the wall clock was set by {jump_ms} ms" if abs(jump_ms) >= JUMP_MS else ""


def _spooled(measures: Measures, jump_ms: int, is_up: bool) -> str:
    if measures.spooled_s < (1 if is_up else SPOOLED_S):
        return ""
    why = f" ({measures.spooled_why})" if measures.spooled_why else ""
    return (
        f"{measures.spooled} messages wait in the spool, the oldest for {measures.spooled_s} s{why}"
    )


def _set_aside(measures: Measures, jump_ms: int, is_up: bool) -> str:
    count = measures.set_aside
    return f"{count} spooled messages were refused or are damaged, and are kept" if count else ""


def _starved(measures: Measures, jump_ms: int, is_up: bool) -> str:
    factor = LATE_WELL_FACTOR if is_up else LATE_FACTOR
    if measures.late_ms * factor < measures.failure_ms:
        return ""
    return (
        f"the node thread ran {measures.late_ms} ms late; after failure_ms "
        f"{measures.failure_ms} others take the node for dead"
    )


_RULES = (
    _Rule("store_full", _store_full),
    _Rule("disk_low", _disk_low),
    _Rule("no_quorum", _no_quorum, bad_ms=QUORUM_MS),
    _Rule("last_copy", _last_copy, bad_ms=COPY_MS),
    _Rule("damaged", _damaged, well_ms=DAMAGE_WELL_MS),
    _Rule("unsendable", _unsendable),
    _Rule("slow_disk", _slow_disk, well_ms=QUIET_MS),
    _Rule("clock_jump", _clock_jump, well_ms=QUIET_MS),
    _Rule("spooled", _spooled),
    _Rule("set_aside", _set_aside),
    _Rule("starved", _starved, well_ms=QUIET_MS),
)
