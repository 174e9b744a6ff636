"""The oracle of every traffic scenario: N, N-1, … 1, each confirmed; what a consumer saw."""

from __future__ import annotations

from typing import Any

from .cluster import Peer, until


class Traffic:
    """A producer in one process and a consumer in another, on the queue "orders".

    Args:
        top: the first number; puts go down from it, to 1 unless they are stopped before.
        pause_s: between two puts.
    """

    def __init__(self, producer: Peer, consumer: Peer, top: int, pause_s: float = 0.0) -> None:
        self._producer, self._consumer, self._top = producer, consumer, top
        queue = consumer.ask("queue", name="orders")
        self._watch = consumer.ask("consume", queue=queue, top=top)
        queue = producer.ask("queue", name="orders")
        self._number = producer.ask("produce", queue=queue, count=top, pause_s=pause_s)

    def produced(self) -> dict[str, Any]:
        found: dict[str, Any] = self._producer.ask("produced", number=self._number)
        return found

    def consumed(self) -> dict[str, Any]:
        found: dict[str, Any] = self._consumer.ask("consumed", number=self._watch)
        return found

    def wait_confirmed(self, count: int) -> None:
        until(lambda: self.produced()["confirmed"] >= count, self.produced)

    def wait_more_confirmed(self, count: int) -> None:
        """So many more than now."""
        self.wait_confirmed(self.produced()["confirmed"] + count)

    def stop(self) -> None:
        """No more is offered; `check` then expects what was."""
        self._producer.ask("stop_producing", number=self._number)

    def _has_all(self, lowest: int) -> bool:
        found = self.consumed()
        return found["lowest"] <= lowest and not found["open"] and not found["missing"]

    def check(self) -> int:
        """Wait until all that was offered is confirmed, seen and acked, then judge it. Returns how
        many were offered."""
        both = (self.produced, self.consumed)
        until(
            lambda: self.produced()["finished"] and not self.produced()["open"],
            lambda: [look() for look in both],
        )
        lowest = self._top + 1 - self.produced()["offered"]
        until(
            lambda: self._has_all(lowest),
            lambda: [look() for look in both],
        )
        produced, consumed = self.produced(), self.consumed()
        assert produced["wrong"] == [], produced
        assert produced["confirmed"] == produced["offered"], produced
        assert consumed["wrong"] == [], consumed
        assert consumed["lowest"] == lowest, consumed
        return int(produced["offered"])
