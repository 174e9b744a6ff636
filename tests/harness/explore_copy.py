"""Copies and keys of the pure machines: what an exploration needs of each state it keeps.

A copy shares everything that is never changed in place (frozen values, entries, views); a
key is a hashable value, equal for equal machines. Both know the mutable classes by name: a
machine of a class that is not listed here would be shared between states, so it is refused.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import attrs
from msgspec import Struct
from msgspec.structs import replace

from harness.explore_time import ToldTime
from mirrorq.containers.fifo import Fifo
from mirrorq.containers.range_map import Places, RangeMap, Spans
from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.run_length import Column, Sizes
from mirrorq.containers.time_buckets import Timetable
from mirrorq.containers.timers import Deadlines, Timer, Timers
from mirrorq.protocol.effects import QueueWrite, ReplicaEffects
from mirrorq.replication.checkpoints import Checkpoints, Open
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.donor import Donor, Given, Incoming
from mirrorq.replication.master.attachments import Attachment, Attachments, Claims, Told
from mirrorq.replication.master.auto_delete import AutoDelete, IdleExpiry
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.consumers import Consumers, Subscription
from mirrorq.replication.master.courier import Couriers
from mirrorq.replication.master.delays import Delays
from mirrorq.replication.master.deliveries import Deliveries
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.expiry import Expiry
from mirrorq.replication.master.inquiries import Browses
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.length_limit import LengthLimit
from mirrorq.replication.master.limits import InLog
from mirrorq.replication.master.log_tail import Highest, LogTail
from mirrorq.replication.master.master import Master
from mirrorq.replication.master.open_deliveries import Extensions, OpenDeliveries, OpenDelivery
from mirrorq.replication.master.producers import Producers
from mirrorq.replication.master.purging import OpenPurge, Purges, Purging, Stretch
from mirrorq.replication.master.ready_messages import ReadyMessages
from mirrorq.replication.master.settling import Duties, PendingSettle, Settling
from mirrorq.replication.master.stages import Stages
from mirrorq.replication.master.suspects import Suspects
from mirrorq.replication.master.term import Lease, Term
from mirrorq.replication.membership import Membership
from mirrorq.replication.queue_time import QueueTime
from mirrorq.replication.rail import RailGuard
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring
from mirrorq.replication.ring_log import RingLog
from mirrorq.replication.state.columns import Block, Columns, Directory
from mirrorq.replication.state.outbox import Outbox, TargetOutbox
from mirrorq.replication.state.pages import Snapshot, Table
from mirrorq.replication.state.priorities import Horizons, PriorityLevel, ReadyLevels
from mirrorq.replication.state.producer import Producer
from mirrorq.replication.state.producer import Producers as StateProducers
from mirrorq.replication.state.queue_state import QueueState, Search
from mirrorq.replication.state.staging import Attempt, StagedRun, Staging, Work
from mirrorq.replication.transfer import Transfer
from mirrorq.replication.writes import Writes
from mirrorq.testing.disk import QueueFiles

PLAIN = (
    Attachments,
    Block,
    Browses,
    Checkpoints,
    Claims,
    Columns,
    Confirms,
    Consumers,
    Couriers,
    Deadlines,
    Delays,
    Dispatch,
    Departures,
    Directory,
    Donor,
    Endings,
    Expiry,
    Extensions,
    Given,
    Highest,
    Deliveries,
    Horizons,
    InLog,
    Incoming,
    Intake,
    LengthLimit,
    LogTail,
    Master,
    Membership,
    OpenDeliveries,
    Outbox,
    Places,
    Producers,
    Purges,
    Purging,
    QueueState,
    QueueTime,
    RailGuard,
    ReadyLevels,
    ReadyMessages,
    Term,
    Replica,
    Ring,
    RingLog,
    Settling,
    Snapshot,
    Spans,
    Stages,
    Staging,
    StateProducers,
    Suspects,
    Table,
    Timer,
    Timers,
    Timetable,
    ToldTime,
    Transfer,
    Writes,
)
"""Mutable classes, most with a __dict__."""
DEFINED = (
    Attachment,
    Attempt,
    Subscription,
    IdleExpiry,
    Duties,
    PriorityLevel,
    Lease,
    Open,
    OpenPurge,
    TargetOutbox,
    PendingSettle,
    QueueFiles,
    Room,
    StagedRun,
    Search,
    Stretch,
    Told,
    AutoDelete,
    Work,
)
"""Mutable classes of attrs."""
COLUMNS = (Column, RangeMap, Sizes)
_GIVEN = ("_config", "_codec", "_targets", "config", "codec", "targets")
SHARED = frozenset((*_GIVEN, "out", "_standing", "meter", "tally", "_cache", "_owner"))
"""Fields that are no state, or follow from others: the same object in every copy."""

_FIELDS: dict[type, tuple[str, ...]] = {
    QueueWrite: QueueWrite.__struct_fields__,
    **{cls: tuple(field.name for field in attrs.fields(cls)) for cls in DEFINED},
}
_NAMES: dict[type, tuple[str, ...]] = {
    cls: getattr(cls, "__struct_fields__", ())
    or tuple(name for base in cls.__mro__ for name in getattr(base, "__slots__", ()))
    for cls in PLAIN
}
"""Fields of the classes without a __dict__."""
_NO_EFFECTS = ReplicaEffects()

Copier = Callable[[Any, dict[int, Any]], Any]
Keyer = Callable[[Any, set[int]], Any]


def copy(machine: Any, memo: dict[int, Any] | None = None) -> Any:
    """A machine equal to this one that shares nothing mutable with it."""
    copier = _COPIERS[type(machine)]
    return machine if copier is None else copier(machine, {} if memo is None else memo)


def key(machine: Any) -> Any:
    """A hashable value: equal for machines that behave alike."""
    keyer = _KEYERS[type(machine)]
    return machine if keyer is None else keyer(machine, set())


# A machine has some 150 values, three quarters of them numbers, and an exploration copies a
# million machines: what is done with a value is found by its class in a table, for the fields of
# one object all at once.


def _copy_list(value: list[Any], memo: dict[int, Any]) -> list[Any]:
    return [_copy(item, memo) for item in value] if value else []


def _copy_tuple(value: tuple[Any, ...], memo: dict[int, Any]) -> tuple[Any, ...]:
    return tuple([_copy(item, memo) for item in value]) if _is_mixed(value) else value


def _copy_deque(value: deque[Any], memo: dict[int, Any]) -> deque[Any]:
    return deque([_copy(item, memo) for item in value]) if value else deque()


def _copy_dict(value: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    return {name: _copy(item, memo) for name, item in value.items()} if value else {}


def _copy_column(value: Any, memo: dict[int, Any]) -> Any:
    return value.copy()


def _copy_array(value: array[Any], memo: dict[int, Any]) -> array[Any]:
    return value[:]


def _copy_plain(value: Any, memo: dict[int, Any]) -> Any:
    known = memo.get(id(value))
    if known is not None:
        return known
    kind = value.__class__
    names = _NAMES[kind]
    if names:
        is_struct = issubclass(kind, Struct)
        twin = memo[id(value)] = replace(value) if is_struct else object.__new__(kind)
        fields = _named(value, names)
    else:
        twin = memo[id(value)] = object.__new__(kind)
        fields = twin.__dict__ = value.__dict__.copy()
    plan = _COPY_PLANS.get((kind, *map(type, fields.values())))
    if plan is None:
        plan = _plan(_COPY_PLANS, _COPIERS, kind, fields)
    for name, copier in plan:
        fields[name] = copier(fields[name], memo)
    for name in names:
        setattr(twin, name, fields[name])
    return twin


def _named(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a machine without a __dict__."""
    return {name: getattr(value, name) for name in names}


def _copy_fifo(value: Fifo[Any], memo: dict[int, Any]) -> Fifo[Any]:
    return Fifo.of([_copy(item, memo) for item in value])


def _copy_defined(value: Any, memo: dict[int, Any]) -> Any:
    known = memo.get(id(value))
    if known is not None:
        return known
    kind = value.__class__
    twin = memo[id(value)] = object.__new__(kind)
    for name in _FIELDS[kind]:
        item = getattr(value, name)
        copier = _COPIERS[item.__class__]
        setattr(twin, name, item if copier is None else copier(item, memo))
    return twin


def _copy_producer(value: Producer, memo: dict[int, Any]) -> Producer:
    return replace(value, outcomes=[*value.outcomes])


def _copy_delivery(value: OpenDelivery, memo: dict[int, Any]) -> OpenDelivery:
    rest, until = value.rest, value.until
    rest = None if rest is None else rest.copy()
    return replace(value, rest=rest, until=None if until is None else until.copy())


def _key_delivery(value: OpenDelivery, seen: set[int]) -> Any:
    until = None if value.until is None else tuple(value.until.items())
    left = value.left.to_bytes()
    return value.key, value.count, left, value.handed_ms, value.is_suspect, until


def _key_producer(value: Producer, seen: set[int]) -> Any:
    return value.highest, value.settled, tuple(value.outcomes), value.used_us


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    copier = _COPIERS[value.__class__]
    return value if copier is None else copier(value, memo)


def _key_run(value: Any, seen: set[int]) -> Any:
    return tuple([_key(item, seen) for item in value]) if value else ()


def _key_tuple(value: tuple[Any, ...], seen: set[int]) -> Any:
    return tuple([_key(item, seen) for item in value]) if _is_mixed(value) else value


def _key_dict(value: dict[Any, Any], seen: set[int]) -> Any:
    return tuple([(name, _key(item, seen)) for name, item in value.items()]) if value else ()


def _key_column(value: Any, seen: set[int]) -> Any:
    return value.to_bytes()


def _key_array(value: array[Any], seen: set[int]) -> Any:
    return value.tobytes()


def _key_write(value: QueueWrite, seen: set[int]) -> Any:
    return tuple([_key(getattr(value, name), seen) for name in _FIELDS[QueueWrite]])


def _key_plain(value: Any, seen: set[int]) -> Any:
    if id(value) in seen:
        return None
    seen.add(id(value))
    kind = value.__class__
    names = _NAMES[kind]
    fields = _named(value, names) if names else value.__dict__
    plan = _KEY_PLANS.get((kind, *map(type, fields.values())))
    if plan is None:
        plan = _plan(_KEY_PLANS, _KEYERS, kind, fields)
    found = fields.copy()
    for name, keyer in plan:
        found[name] = keyer(fields[name], seen)
    return tuple(found.values())


def _key_defined(value: Any, seen: set[int]) -> Any:
    if id(value) in seen:
        return None
    seen.add(id(value))
    return tuple([_key(getattr(value, name), seen) for name in _FIELDS[value.__class__]])


def _key(value: Any, seen: set[int]) -> Any:
    keyer = _KEYERS[value.__class__]
    return value if keyer is None else keyer(value, seen)


def _is_mixed(value: tuple[Any, ...]) -> bool:
    """Whether something in this tuple can change."""
    return RangeSet in map(type, value)


def _plan(plans: dict[Any, Any], table: _Table, kind: type, fields: dict[str, Any]) -> Any:
    """What has to be done with the fields of machines of this class whose values are of these
    classes: most are numbers, with which nothing is."""
    plan = [(name, table[item.__class__]) for name, item in fields.items() if name not in SHARED]
    plan = [(name, work) for name, work in plan if work is not None]
    if table is _KEYERS:
        plan += [(name, _key_nothing) for name in fields if name in SHARED]
    plans[(kind, *map(type, fields.values()))] = plan
    return plan


def _key_nothing(value: Any, seen: set[int]) -> None:
    pass


def _refuse(value: Any, known: object) -> NoReturn:
    raise TypeError(f"an exploration does not know how to copy a {type(value).__name__}")


class _Table(dict[type, Any]):
    """What is done with values of each class; None: nothing, they are never changed."""

    def __missing__(self, kind: type) -> Any:
        if issubclass(kind, Struct):
            is_frozen = kind.__struct_config__.frozen
        else:
            is_frozen = attrs.has(kind) and kind.__setattr__ is not object.__setattr__
        self[kind] = None if is_frozen else _refuse
        return self[kind]


_COPY_PLANS: dict[tuple[type, ...], list[tuple[str, Copier]]] = {}
_KEY_PLANS: dict[tuple[type, ...], list[tuple[str, Keyer]]] = {}
_ATOMS: dict[type, Any] = dict.fromkeys((int, str, bytes, bool, type(None)))
_COPIERS = _Table(
    _ATOMS
    | {list: _copy_list, tuple: _copy_tuple, deque: _copy_deque, dict: _copy_dict}
    | {array: _copy_array, RangeSet: _copy_column, Fifo: _copy_fifo}
    | dict.fromkeys(COLUMNS, _copy_column)
    | dict.fromkeys(PLAIN, _copy_plain)
    | dict.fromkeys(DEFINED, _copy_defined)
    | {Producer: _copy_producer, OpenDelivery: _copy_delivery}
)
_KEYERS = _Table(
    _ATOMS
    | {list: _key_run, tuple: _key_tuple, deque: _key_run, dict: _key_dict}
    | {array: _key_array, RangeSet: _key_column, QueueWrite: _key_write, Fifo: _key_run}
    | dict.fromkeys(COLUMNS, _key_column)
    | dict.fromkeys(PLAIN, _key_plain)
    | dict.fromkeys(DEFINED, _key_defined)
    | {Producer: _key_producer, OpenDelivery: _key_delivery}
)


def still(replica: Replica) -> None:
    """Forget the effects of the last step: they are no state."""
    replica.ring.out = _NO_EFFECTS
