"""Copies and keys of the pure machines: what an exploration needs of each state it keeps.

A copy shares everything that is never changed in place (frozen values, entries, views); a
key is a hashable value, equal for equal machines. Both know the mutable classes by name: a
machine of a class that is not listed here would be shared between states, so it is refused.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import attrs

from mirrorq.attachments import Attachment, Attachments
from mirrorq.claims import Claims
from mirrorq.columns import Column, Sizes
from mirrorq.courier import Couriers
from mirrorq.delays import Delays
from mirrorq.delivery import ConsumerSeat, Delivery, OpenHandOut
from mirrorq.disuse import Disuse
from mirrorq.effects import QueueWrite, ReplicaEffects
from mirrorq.expiry import Expiry
from mirrorq.flow import Told
from mirrorq.lanes import Horizons, Lane, ReadyLanes
from mirrorq.limits import InLog
from mirrorq.master import Duties, Lease, Master, PendingSettle
from mirrorq.outbox import Outbox, Outlet
from mirrorq.purges import OpenPurge, Purges
from mirrorq.queue_state import Producer, QueueState
from mirrorq.ranges import RangeSet
from mirrorq.replica import Replica
from mirrorq.ring import Ring
from mirrorq.room import Room
from mirrorq.spans import Places, Spans
from mirrorq.stages import Stages
from mirrorq.staging import Attempt, Run, Staging, Work
from mirrorq.testing.disk import QueueFiles
from mirrorq.timetable import Timetable
from mirrorq.transfer import Transfer
from mirrorq.vacancy import Vacancy

PLAIN = (
    Attachments,
    Claims,
    Couriers,
    Delays,
    Delivery,
    Expiry,
    Horizons,
    InLog,
    Master,
    Outbox,
    Places,
    Purges,
    QueueState,
    ReadyLanes,
    Replica,
    Ring,
    Spans,
    Stages,
    Staging,
    Timetable,
    Transfer,
)
"""Mutable classes with a __dict__."""
DEFINED = (
    Attachment,
    Attempt,
    ConsumerSeat,
    Disuse,
    Duties,
    Lane,
    Lease,
    OpenHandOut,
    OpenPurge,
    Outlet,
    PendingSettle,
    Producer,
    QueueFiles,
    Room,
    Run,
    Told,
    Vacancy,
    Work,
)
"""Mutable attrs classes."""
COLUMNS = (Column, Sizes)
SHARED = ("_config", "_codec", "out", "_standing", "meter", "tally", "_targets")
"""Fields that are no state, or follow from others: the same object in every copy."""

_FIELDS: dict[type, tuple[str, ...]] = {
    cls: tuple(field.name for field in attrs.fields(cls)) for cls in (*DEFINED, QueueWrite)
}
_NO_EFFECTS = ReplicaEffects()


def copy(machine: Any, memo: dict[int, Any] | None = None) -> Any:
    """A machine equal to this one that shares nothing mutable with it."""
    return _copy(machine, {} if memo is None else memo)


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return [_copy(item, memo) for item in value]
    if kind is tuple:
        return tuple([_copy(item, memo) for item in value]) if _is_mixed(value) else value
    if kind is deque:
        return deque(_copy(item, memo) for item in value)
    if kind is dict:
        return {key: _copy(item, memo) for key, item in value.items()}
    if kind is RangeSet or kind in COLUMNS:
        return value.copy()
    if kind is array:
        return value[:]
    known = memo.get(id(value))
    if known is not None:
        return known
    if kind in _PLAIN_SET:
        twin = memo[id(value)] = object.__new__(kind)
        target = twin.__dict__
        for name, item in value.__dict__.items():
            target[name] = item if name in SHARED else _copy(item, memo)
        return twin
    if kind in _DEFINED_SET:
        twin = memo[id(value)] = object.__new__(kind)
        for name in _FIELDS[kind]:
            setattr(twin, name, _copy(getattr(value, name), memo))
        return twin
    return _share(value)


def _share(value: Any) -> Any:
    kind = type(value)
    frozen = attrs.has(kind) and kind.__setattr__ is not object.__setattr__
    if not frozen and kind is not tuple:
        raise TypeError(f"an exploration does not know how to copy a {kind.__name__}")
    if kind is not tuple:
        _ATOMS.add(kind)
    return value


def _is_mixed(value: tuple[Any, ...]) -> bool:
    """Whether something in this tuple can change."""
    return any(type(item) is RangeSet for item in value)


_ATOMS: set[type] = {int, str, bytes, bool, type(None)}
_PLAIN_SET = frozenset(PLAIN)
_DEFINED_SET = frozenset(DEFINED)


def key(machine: Any) -> Any:
    """A hashable value: equal for machines that behave alike."""
    return _key(machine, set())


def _key(value: Any, seen: set[int]) -> Any:
    kind = type(value)
    if kind is QueueWrite:
        return tuple([_key(getattr(value, name), seen) for name in _FIELDS[kind]])
    if kind in _ATOMS:
        return value
    if kind is list or kind is deque:
        return tuple([_key(item, seen) for item in value])
    if kind is tuple:
        return tuple([_key(item, seen) for item in value]) if _is_mixed(value) else value
    if kind is dict:
        return tuple([(name, _key(item, seen)) for name, item in value.items()])
    if kind is RangeSet or kind in COLUMNS:
        return value.to_bytes()
    if kind in _PLAIN_SET or kind in _DEFINED_SET:
        if id(value) in seen:
            return None
        seen.add(id(value))
        names = value.__dict__ if kind in _PLAIN_SET else _FIELDS[kind]
        return tuple([_key(getattr(value, n), seen) for n in names if n not in SHARED])
    if kind is array:
        return value.tobytes()
    return _share(value)


def still(replica: Replica) -> None:
    """Forget the effects of the last step: they are no state."""
    replica.ring.out = _NO_EFFECTS
