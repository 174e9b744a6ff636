"""What a mutation is: a name, and what it puts in place of real attributes while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["MUTATIONS", "Patch", "Real", "answer", "instead", "mutation", "named"]

Patch = tuple[Any, str, Any]
"""(where, name, what stands there instead)."""
Patches = Callable[[], Sequence[Patch]]
Real = Callable[..., Any]
"""The function that a mutation stands in for."""

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


def instead(name: str, owner: Any, attribute: str) -> Callable[[Real], Real]:
    """Register a function that stands in for one of a class or module. It is given the real one,
    then that one's arguments. A mutation may have several."""
    others = MUTATIONS.get(name, tuple)

    def note(rule: Real) -> Real:
        def patches() -> Sequence[Patch]:
            real = getattr(owner, attribute)

            def stand_in(*given: Any, **options: Any) -> Any:
                return rule(real, *given, **options)

            is_property = isinstance(real, property)
            mine = (owner, attribute, property(stand_in) if is_property else stand_in)
            return [*others(), mine]

        MUTATIONS[name] = patches
        return rule

    return note


def answer(name: str, owner: Any, attribute: str, value: object) -> None:
    """Register that a function does nothing and returns this."""
    instead(name, owner, attribute)(lambda *_, **__: value)
