"""What a mutation is: a name, and what it puts in place of real attributes while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["MUTATIONS", "Patch", "mutation", "named"]

Patch = tuple[Any, str, Any]
"""(where, name, what stands there instead)."""
Patches = Callable[[], Sequence[Patch]]

MUTATIONS: dict[str, Patches] = {}


@contextmanager
def mutation(name: str) -> Iterator[None]:
    """Switch one deliberate bug on."""
    with ExitStack() as undo:
        for where, attribute, value in MUTATIONS[name]():
            undo.callback(setattr, where, attribute, where.__dict__[attribute])
            setattr(where, attribute, value)
        yield


def named(name: str) -> Callable[[Patches], Patches]:
    """Register what a function patches under a name."""

    def note(patches: Patches) -> Patches:
        MUTATIONS[name] = patches
        return patches

    return note
