"""Objects that the end of a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Self

from mirrorq.errors import MirrorQError


def of_this_process(one: object) -> NoReturn:
    """Raise TypeError: the object cannot be pickled. Used as its `__reduce__`."""
    raise TypeError(
        f"{one!r} belongs to this process and cannot be pickled: open it where it is used"
    )


class Closing(ABC):
    """An object that the end of its `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Close the object. May be repeated."""

    def __reduce__(self) -> tuple[object, ...]:
        of_this_process(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except MirrorQError:  # such as of a forked process: the block's own exception says more
            if kind is None:
                raise
