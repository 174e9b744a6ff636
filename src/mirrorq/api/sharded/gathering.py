"""Outcomes of several shards as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirrorq.api.confirmation import Settlement
from mirrorq.errors import MirrorQError
from mirrorq.protocol.sessions import Counts, Purged

if TYPE_CHECKING:
    from mirrorq.api.message import Message
    from mirrorq.api.sharded.shard import Shard

__all__ = ["GatheredAnswer", "gathered_reply", "settle_together"]


class _Part(Settlement):
    """One shard's part of a settlement: nobody waits for it, it tells the whole."""

    _tell: Callable[[MirrorQError | None], None] | None = None

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        super()._finish(value, error)
        if self._tell is not None:
            self._tell(error)


def settle_together(
    whole: Settlement, kind: str, messages: Mapping[Shard, Sequence[Message]]
) -> Settlement:
    """Settle messages of several shards: done when it is everywhere, failed where it is once."""
    errors: list[MirrorQError] = []
    # Told on the host's thread and, of what was settled before, on this one.
    ended = itertools.count(1)

    def tell(error: MirrorQError | None) -> None:
        if error is not None:
            errors.append(error)
        if next(ended) == len(messages):
            whole._finish(None, _joined(errors))

    for shard, held in messages.items():
        shard._settle(kind, held, settlement=_Part(shard._outcomes, _tell=tell))
    return whole


def _joined(errors: Sequence[MirrorQError]) -> MirrorQError | None:
    if len(errors) < 2:
        return errors[0] if errors else None
    return type(errors[0])("; ".join(str(error) for error in errors))


class GatheredAnswer:
    """One question to every shard's master."""

    def __init__(self, parts: Sequence[tuple[Shard, Any]]) -> None:
        self.parts = parts

    @property
    def is_done(self) -> bool:
        """Whether each has an answer, or will never get one."""
        return all(answer.is_done or shard._is_closed for shard, answer in self.parts)


def gathered_reply(replies: Sequence[object]) -> object:
    """What all shards have said: the sums of what they count."""
    if isinstance(replies[0], Purged):
        return Purged(0, sum(one.count for one in replies if isinstance(one, Purged)))
    counts = [one for one in replies if isinstance(one, Counts)]
    return Counts(
        0,
        sum(one.ready for one in counts),
        sum(one.unacknowledged for one in counts),
        max((one.consumers for one in counts), default=0),
        0,
        sum(one.store_bytes for one in counts),
        sum(one.delayed for one in counts),
        waiting=any(one.waiting for one in counts),
    )
