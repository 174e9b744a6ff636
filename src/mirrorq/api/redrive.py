"""Moves dead letters back to their queues of origin.

Messages are taken as by any consumer, or browsed for a range, because their headers name the
origin. Then the queue's master moves them by its outbox, so that each arrives exactly once and no
body travels to the caller's process and back.
"""

from __future__ import annotations

from itertools import groupby

from mirrorq.api.channel import purged_count
from mirrorq.api.handle import Handle
from mirrorq.api.message import Message
from mirrorq.api.receiver import unsee
from mirrorq.api.waits import in_thread
from mirrorq.errors import AckRefused, QueueNotFound
from mirrorq.session.calls import range_request

BATCH_COUNT = 500
GET_S = 2.0
"""Longest wait in seconds for messages that the queue has reported as ready."""
MOVE_S = 30.0


def redrive(handle: Handle, count_max: int | None) -> int:
    """Move ready messages of a queue back to their origins; return the number of moved messages."""
    ready = in_thread(handle.receiver.counting_ready(handle.counting))
    left = ready if count_max is None else min(ready, count_max)
    moved = 0
    origins: dict[str, int] = {}
    stay: list[Message] = []
    held: list[Message] = []
    try:
        while left > 0:
            held = _taken(handle, min(left, BATCH_COUNT))
            if not held:
                break
            left -= len(held)
            groups: dict[int, list[Message]] = {}
            for message in held:
                groups.setdefault(_origin(handle, message, origins), []).append(message)
            stay += groups.pop(0, [])
            held = [message for moving in groups.values() for message in moving]
            moved += _move(handle, groups)
            held = []
    finally:
        handle.give_back([*stay, *held])
    return moved


def redrive_range(handle: Handle, first: int, last: int) -> int:
    """Move the unheld messages of a range back to their origins; return the number."""
    moved = 0
    origins: dict[str, int] = {}
    while first <= last:
        page = in_thread(handle.browsing(first, BATCH_COUNT))
        named = [message for message in page if message.sequence <= last]
        for target, run in groupby(named, lambda message: _origin(handle, message, origins)):
            sequences = [message.sequence for message in run]
            if target:
                request = range_request(sequences[0], sequences[-1], target)
                moved += purged_count(handle.name, handle.ask(request, MOVE_S))
        if not page:
            break
        first = page[-1].sequence + 1
    return moved


def _taken(handle: Handle, count_max: int) -> list[Message]:
    found: list[Message] = []
    try:
        in_thread(handle.receiver.getting_many(found, count_max, GET_S))
        return found
    except BaseException:
        unsee(found)
        raise


def _origin(handle: Handle, message: Message, origins: dict[str, int]) -> int:
    """Return the id of the queue in which the message ended; 0: it no longer exists."""
    name = message.headers.get("x-death-queue")
    if not isinstance(name, str):
        return 0
    if name not in origins:
        try:
            origins[name] = handle.id_of(name)
        except QueueNotFound:
            origins[name] = 0
    return origins[name]


def _move(handle: Handle, groups: dict[int, list[Message]]) -> int:
    asked = [
        (len(messages), handle.settle("move", messages, target=target))
        for target, messages in groups.items()
    ]
    moved = 0
    for count, settlement in asked:
        try:
            settlement.result(MOVE_S)
        except AckRefused:
            continue
        moved += count
    return moved
