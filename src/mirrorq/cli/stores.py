"""Commands about the store of a stopped node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq.cli.connecting import Failed, as_json, echo
from mirrorq.cli.progress import progress_bar

if TYPE_CHECKING:
    from mirrorq.node.verification import Report


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@as_json
def verify(path: Path, is_json: bool) -> None:
    """Check everything in the store at PATH, of a node that does not run, or of a backup.

    Changes nothing. Exit status 0 when all of it is as it was written; else 1 and a list of what
    is damaged.
    """
    report = verified(path)
    if is_json:
        echo(json.dumps({"ok": report.is_good, **attrs.asdict(report)}, indent=2))
    else:
        for text in report.problems:
            echo(f"damaged\t{text}")
        for text in report.notes:
            echo(f"note\t{text}")
    if not report.is_good:
        raise Failed(f"store {path} is damaged: {len(report.problems)} problems")
    if not is_json:
        echo(said_of(report))


def verified(path: Path) -> Report:
    """Walk through a store; return the findings."""
    from mirrorq.node.verification import verify as walk
    from mirrorq.store.offline import OfflineStore

    with progress_bar(f"verifying {path}") as on_progress, OfflineStore(path) as store:
        return walk(store, on_progress)


def said_of(report: Report) -> str:
    """Return a line about a good store."""
    return (
        f"good: node {report.node}, store {report.store_id}, incarnation {report.incarnation}; "
        f"{report.queues} queues, {report.messages} messages, {report.frames} frames, "
        f"{report.raft_entries} entries of the catalog up to {report.catalog_index}"
    )
