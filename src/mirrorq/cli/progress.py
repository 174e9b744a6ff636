"""Progress bars of long work, on standard error; nothing is drawn where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[..., None] | None]:
    """What is to be called with what is done, what there is (None: that is not known) and, where
    the name shall change, another one; None where nothing is drawn."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(name, total=None)

        def show(done: float, total: float | None, text: str = name) -> None:
            progress.update(task, completed=done, total=total, description=text)

        yield show
