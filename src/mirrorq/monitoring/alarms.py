"""Alarms of a node: a state machine that is fed with measurements. Pure.

An alarm is raised when its measure has been bad for a while, and cleared when the measure has been
good for a while. A gap lies between bad and good, so a measure at the edge raises one alarm, not a
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
    "damaged": "look at the disk, and run `mirrorq store verify` on this store or a backup of it; "
    "what other nodes have is fetched from them by itself: see status().warnings and "
    "docs/operations.md",
    "unsendable": "it is sent again and again and never arrives: drain the queue, or raise "
    "frame_bytes_max on all nodes",
    "slow_disk": "look at the disk: each confirm waits for it",
    "clock_jump": "look at time synchronisation: times of messages follow this clock, slowly",
    "spooled": "bring back what is missing: they are safe on this disk, and are sent by themselves",
    "set_aside": "read them with SpooledQueue.set_aside(), then put them again or drop_set_aside()",
    "starved": "give the process more CPU, or keep the host application's C code from holding the "
    "GIL: run the node as a process of its own",
}
"""Name of an alarm -> advice to an operator."""

GIB = 1 << 30
STORE_RATIO = 0.85
STORE_RATIO_WELL = 0.75
DISK_BYTES = GIB
"""Free bytes below which a disk is low; of a small disk a part, one of `DISK_PART`."""
DISK_PART = 20
DISK_WELL_FACTOR = 1.25
QUORUM_MS = 1000
"""A pause shorter than this is an election."""
COPY_MS = 5000
"""A restarting mirror is in sync again sooner."""
COMMIT_MS = 500
COMMIT_WELL_MS = 100
JUMP_MS = 1000
LATE_FACTOR = 2
"""A node thread late by failure_ms divided by this number is close to being considered dead."""
LATE_WELL_FACTOR = 10
SPOOLED_S = 30
"""A change of masters, or a restart of the spool's cluster, is over sooner."""
DAMAGE_WELL_MS = 10_000
"""Damage that was mended at once is reported for this long."""
QUIET_MS = 60_000
"""A fault that comes in gusts is over after this long without a fault."""
NAMES_MAX = 3


@frozen
class Measures:
    """Measurements since the last look."""

    now_ms: int
    """Time of the look, by the clock that never jumps."""
    wall_ms: int
    """Time of the look, by the wall clock."""
    store_used: int
    """Bytes in use in the store."""
    store_max: int
    disk_free: int
    """Free bytes of the store's disk; below 0: not known."""
    disk_total: int
    is_paused: bool
    last_copies: tuple[str, ...]
    """Queues with their master here and one copy in sync, whose policy wants more copies."""
    damaged: tuple[str, ...]
    """Queues with damaged data on this disk."""
    damage_count: int
    """Damaged frames found since the last look, mended frames included."""
    unsendable: tuple[str, ...]
    """Messages that were too large to be sent lately, a text for each."""
    commit_ms: int
    """Duration of the longest commit."""
    spooled: int
    """Messages in this node's spools."""
    spooled_s: int
    """Seconds that the oldest spooled message has waited."""
    spooled_why: str
    """Why spooled messages are not sent; "": they are sent."""
    set_aside: int
    """Messages that the spools' queues refused, or that are damaged."""
    late_ms: int
    """The longest delay of the node thread."""
    failure_ms: int


@frozen
class Alarm:
    """A raised alarm of one node."""

    name: str
    """Which alarm, as docs/monitoring.md lists them."""
    since_ms: int
    """Time at which the alarm was raised, in milliseconds of the node's steady clock."""
    text: str
    """The fault, with values, and advice to an operator."""


@define
class _State:
    """State of one rule."""

    alarm: Alarm | None = None
    turned_ms: int | None = None
    """Time since which the measure says the opposite of the alarm's state."""


class Alarms:
    """All alarms of one node. The node thread steps them; any thread may read `raised`."""

    def __init__(self) -> None:
        self._states = {rule.name: _State() for rule in _RULES}
        self._offset_ms: int | None = None
        """Wall clock less steady clock."""

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """The raised alarms, in the order of `ADVICE`."""
        return tuple(s.alarm for s in self._states.values() if s.alarm is not None)

    def judge(self, measures: Measures) -> tuple[list[Alarm], list[Alarm]]:
        """Judge measurements; return the alarms raised now, and the alarms that are over."""
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
        """Return by how much the wall clock was set since the last look."""
        offset_ms = measures.wall_ms - measures.now_ms
        before, self._offset_ms = self._offset_ms, offset_ms
        return 0 if before is None else offset_ms - before


@frozen
class _Rule:
    """Rule of one alarm: its measure, and how long the measure must be bad or good."""

    name: str
    judge: Callable[[Measures, int, bool], str]
    """(measures, jump, is raised) -> the fault in words; "": there is none."""
    bad_ms: int = 0
    """A measure bad for this long raises the alarm."""
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
