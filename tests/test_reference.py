"""The reference leaves nothing public out: the site shows only what has a docstring."""

from __future__ import annotations

import json
import re
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"^::: mirrorq\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)


def test_every_public_member_has_a_docstring() -> None:
    """Attributes, too: one without is missing on the page, without a warning."""
    package = griffe.load("mirrorq", search_paths=[ROOT / "src"], resolve_aliases=True)
    named = NAME.findall((ROOT / "docs" / "reference.md").read_text("utf-8") + "\n")
    assert ("Message", "") in named
    seen: set[str] = set()
    missing: list[str] = []
    for name, block in named:
        filters = re.search(r"filters: (.*)", block)
        hidden = [one[1:] for one in json.loads(filters[1])] if filters else ["^_"]
        shown = package[name]
        members = shown.all_members if "inherited_members: true" in block else shown.members
        for member, what in members.items():
            if any(re.search(one, member) for one in hidden) or (shown.is_module and what.is_alias):
                continue
            seen.add(f"{name}.{member}")
            if not what.has_docstring:
                missing.append(f"{name}.{member}")
    assert missing == []
    assert {"Message.body", "QueueStatus.messages_ready", "QueueStatus.master"} <= seen
