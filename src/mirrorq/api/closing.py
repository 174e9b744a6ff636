"""Objects that the end of a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from mirrorq.errors import MirrorQError


class Closing(ABC):
    """An object that the end of its `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Close the object. May be repeated."""

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled: open it where it is used"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except MirrorQError:  # such as of a forked process: the block's own exception says more
            if kind is None:
                raise
