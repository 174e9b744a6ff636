"""Progress bars of long work, on standard error; no bar is drawn without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[..., None] | None]:
    """Yield a function of the amount done, the total (None: unknown) and, for a change, a new name;
    None without a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
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
