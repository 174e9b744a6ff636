"""docs/shards.md is true: its code blocks are run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mirrorq import Node

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs" / "shards.md"


def test_every_block_of_the_page_runs(node: Node) -> None:
    """In order, with the page's one name given: `endpoint`."""
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {"endpoint": node.listening}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
