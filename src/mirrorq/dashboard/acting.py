"""What an admin may look at and do on the page, by the calls of a queue's handle.

Messages are shown to an admin only: a page without a key shows counts and names, never a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mirrorq.api.access import Access
from mirrorq.api.message import Message
from mirrorq.api.queue import MirroredQueue
from mirrorq.protocol.shard_names import split_name

TIMEOUT_S = 20.0
"""Time limit of an admin's action."""
SHOWN_MAX = 50
"""Messages on one page."""
TEXT_MAX = 400
"""Limit of shown characters of a body, or of a header's value."""


@contextmanager
def _ring(cluster: Access, name: str) -> Iterator[MirroredQueue]:
    """Yield a handle on a queue, or on one shard, by the page's name."""
    queue, shard = split_name(name) or (name, None)
    with ExitStack() as opened:
        handle = opened.enter_context(cluster.queue(queue, passive=True, timeout=TIMEOUT_S))
        yield handle if shard is None else opened.enter_context(handle.shard(shard))


def messages(cluster: Access, name: str, start: int | None) -> list[dict[str, Any]]:
    """Return a queue's messages for the page, from a sequence on; takes no message."""
    with _ring(cluster, name) as queue:
        return [_shown(message) for message in queue.browse(start, SHOWN_MAX)]


def _shown(message: Message) -> dict[str, Any]:
    death = {key: value for key, value in message.headers.items() if key.startswith("x-death-")}
    return {
        "sequence": message.sequence,
        "put_ms": int(message.timestamp * 1000),
        "returned": message.delivery_count - 1,
        "message_id": message.message_id,
        "key": _text(message.key),
        "headers": {
            key: _text(value) for key, value in message.headers.items() if key not in death
        },
        "death": {key.removeprefix("x-death-"): _text(value) for key, value in death.items()},
        "size": len(message.body),
        "body": _text(message.body[:TEXT_MAX]),
    }


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text[:TEXT_MAX]


def action(cluster: Access, asked: Mapping[str, Any]) -> Callable[[], object]:
    """Return a call that does the requested action and returns the text for the page.

    Raises:
        ValueError: there is no such action.
    """
    what, queue, node = (asked.get(name, "") for name in ("what", "queue", "node"))
    if not (isinstance(what, str) and isinstance(queue, str) and isinstance(node, str)):
        raise ValueError("what, queue and node are texts")
    if what == "rebalance":
        return lambda: cluster.rebalance(timeout=TIMEOUT_S)
    if not queue:
        raise ValueError("name a queue")
    of_cluster = {
        "sync": lambda: cluster.sync_queue(queue, timeout=TIMEOUT_S),
        "cancel-sync": lambda: cluster.cancel_sync(queue, timeout=TIMEOUT_S),
        "transfer": lambda: cluster.transfer_master(queue, node, timeout=TIMEOUT_S),
    }
    if what in of_cluster:
        return of_cluster[what]
    sequence = asked.get("sequence", 0)
    of_queue: dict[str, Callable[[MirroredQueue], object]] = {
        "purge": lambda handle: handle.purge(),
        "redrive": lambda handle: handle.redrive(),
        "pause": lambda handle: handle.pause(),
        "resume": lambda handle: handle.resume(),
        "delete": lambda handle: handle.delete_messages(sequence),
    }
    if what not in of_queue:
        raise ValueError(f"nothing is called {what!r}")
    if what == "delete" and (type(sequence) is not int or not 1 <= sequence < 2**63):
        raise ValueError("sequence is a number from 1 on")

    def act() -> object:
        with _ring(cluster, queue) as handle:
            return of_queue[what](handle)

    return act
