"""The demo's display while running, and the table at its end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from mirrorq.demo.check import Findings
from mirrorq.demo.reports import QueueState

_REFRESH_PER_SECOND = 10


class Display:
    """Bars and one line below them, redrawn in place; a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(None),
            MofNCompleteColumn(),
            console=console,
            expand=True,
        )
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total)
            for name in ("published", "confirmed", "consumed")
        }
        self._queue, self._event = QueueState(), ""
        self._live = Live(
            console=console,
            get_renderable=self._renderable,
            auto_refresh=console.is_terminal,
            refresh_per_second=_REFRESH_PER_SECOND,
        )

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, rows: dict[str, int], queue: QueueState, event: str) -> None:
        """Show the bars' rows, the queue and the last event (killed, restarted) from now on."""
        self._queue, self._event = queue, event
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=rows[name])

    def _renderable(self) -> Group:
        queue = self._queue
        line = Text.assemble(
            ("master ", "dim"),
            (queue.master or "none", "bold"),
            ("   in-sync mirrors ", "dim"),
            (", ".join(queue.in_sync) or "none", "bold"),
            ("   queue ", "dim"),
            queue.state,
            ("   ", ""),
            (self._event, "yellow"),
        )
        return Group(self._progress, line)


def findings_table(findings: Findings, facts: Sequence[tuple[str, str]]) -> Table:
    """Return the check as a table; `facts` are shown above."""
    table = Table(title="The check, row by row against the source", title_justify="left")
    table.add_column("what")
    table.add_column("", justify="right")
    for name, value in facts:
        table.add_row(name, value)
    table.add_section()
    for name, count, is_bad in (
        ("rows in the source", findings.rows, False),
        ("confirmed", findings.confirmed, False),
        ("delivered, equal byte for byte", findings.delivered, False),
        ("confirmed but never delivered (lost)", findings.lost, True),
        ("delivered but not in the source", findings.altered, True),
        ("delivered again and flagged so", findings.duplicates_flagged, False),
        ("delivered again without a flag", findings.duplicates_unflagged, True),
        ("out of order", findings.misplaced, True),
    ):
        style = "" if not is_bad else ("bold red" if count else "green")
        table.add_row(name, f"{count:,}", style=style)
    return table
