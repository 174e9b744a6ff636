"""docs/celery.md: its program is that of examples/, and runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kit import DEADLINE_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "celery.md"
EXAMPLE = ROOT / "examples" / "celery_shop.py"
BLOCK = re.compile(r'^```python title="celery_shop.py"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_shop(url: str, tmp_path: Path) -> None:
    """A worker and who calls it share the file; only the port is another."""
    (text,) = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert text == EXAMPLE.read_text(encoding="utf-8")
    assert text.count("mirrorq://127.0.0.1:7400//") == 1
    text = text.replace("mirrorq://127.0.0.1:7400//", url).replace(
        "timeout=10", f"timeout={DEADLINE_S}"
    )
    (tmp_path / EXAMPLE.name).write_text(text, encoding="utf-8")
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", EXAMPLE.stem, "worker", "-c", "1"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        called = [sys.executable, EXAMPLE.name]
        done = subprocess.run(called, cwd=tmp_path, capture_output=True, timeout=2 * DEADLINE_S)
        assert (done.returncode, done.stdout) == (0, b"5\n"), done.stderr.decode()
    finally:
        worker.terminate()
        assert worker.wait(DEADLINE_S) == 0, (tmp_path / "worker.log").read_text()
    assert os.path.getsize(tmp_path / "worker.log")
