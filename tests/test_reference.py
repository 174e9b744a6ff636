"""The reference leaves nothing public out: the site shows only what has a docstring."""

from __future__ import annotations

import json
import re
from pathlib import Path

import griffe

import mirrorq
import mirrorq.aio
import mirrorq.errors

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"^::: mirrorq\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)
WHOLE = "inherited_members: true"


def test_every_public_member_has_a_docstring() -> None:
    """Attributes, too: one without is missing on the page, without a warning. So is what a class
    has from another one, where the page does not ask for it."""
    package = griffe.load("mirrorq", search_paths=[ROOT / "src"], resolve_aliases=True)
    pages = sorted((ROOT / "docs").glob("reference-*.md"))
    named = NAME.findall("".join(page.read_text("utf-8") for page in pages))
    public = {name for name in mirrorq.__all__ if name not in mirrorq.errors.__all__}
    assert public <= {name for name, _ in named}
    seen: set[str] = set()
    missing: list[str] = []
    for name, block in [*named, *((f"aio.{one}", WHOLE) for one in mirrorq.aio.__all__)]:
        filters = re.search(r"filters: (.*)", block)
        hidden = [one[1:] for one in json.loads(filters[1])] if filters else ["^_"]
        shown = package[name]
        is_whole = WHOLE in block
        for member, what in shown.all_members.items():
            if any(re.search(one, member) for one in hidden) or (shown.is_module and what.is_alias):
                continue
            seen.add(f"{name}.{member}")
            if not (what.has_docstring and (is_whole or member in shown.members)):
                missing.append(f"{name}.{member}")
    assert not missing, ", ".join(missing)
    assert {
        "Message.body",
        "QueueStatus.messages_ready",
        "Confirmation.exception",
        "MirroredQueue.name",
    } <= seen
