"""docs/clients.md: its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from mirrorq.node import Node

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def test_every_code_block_runs(node: Node) -> None:
    """In order, as one program, against one node."""
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {"endpoint": node.listening}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == text.count("```") // 2
    try:
        for block in blocks:
            # Line numbers of a failure are those of the page.
            above = "\n" * text.count("\n", 0, block.start(1))
            exec(compile(above + block[1], str(PAGE), "exec"), names)
    finally:
        client = names.get("client")
        if client is not None:
            client.close()  # type: ignore[attr-defined]
