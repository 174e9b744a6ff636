"""What dramatiq's tests import from their `common`, which its sdist does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq


@contextlib.contextmanager
def worker(*given: Any, **named: Any) -> Iterator[Any]:
    made = dramatiq.Worker(*given, **named)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def always(test: Callable[..., Any]) -> Callable[..., Any]:
    """What is skipped elsewhere is not skipped here."""
    return test


skip_in_ci = skip_on_pypy = skip_on_windows = always
