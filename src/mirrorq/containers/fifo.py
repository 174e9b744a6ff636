"""A queue of waiting items that takes no memory while it is empty. Pure.

A copy of a queue has some ten of these queues, and nearly all are empty nearly always. An empty
`deque` takes 760 bytes, and Python's garbage collector looks at it.

An item must not refer to the object that owns the `Fifo`: the collector would not find the cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Self, TypeVar, cast

import msgspec

T = TypeVar("T")

NO_ITEMS = cast("deque[object]", ())
"""Stands in place of the items while there are none: nothing can be put into this value."""


class Fifo(msgspec.Struct, Generic[T], gc=False, eq=False):
    """Items in order: `append` at the end, `popleft` at the beginning."""

    _items: deque[T] = NO_ITEMS  # type: ignore[assignment]

    @classmethod
    def of(cls, items: Iterable[T]) -> Self:
        """Return a queue of these items."""
        return cls(deque(items) or NO_ITEMS)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    def append(self, item: T) -> None:
        """Add an item at the end."""
        self._items = self._items or deque()
        self._items.append(item)

    def appendleft(self, item: T) -> None:
        """Add an item at the beginning."""
        self._items = self._items or deque()
        self._items.appendleft(item)

    def extend(self, items: Iterable[T]) -> None:
        """Add items at the end."""
        for item in items:
            self.append(item)

    def popleft(self) -> T:
        """Remove the first item and return it. Raises IndexError when empty."""
        item = self._items[0]
        self._items.popleft()
        if not self._items:
            self.clear()
        return item

    def clear(self) -> None:
        """Remove all items."""
        self._items = NO_ITEMS  # type: ignore[assignment]
