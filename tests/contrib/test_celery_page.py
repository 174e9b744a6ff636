"""docs/celery.md: its code runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "celery.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_S = 60


def test_the_shop(url: str, tmp_path: Path) -> None:
    """Its blocks are one file, which a worker and who calls it share; only the port is another."""
    text = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert text.count("mirrorq://127.0.0.1:7400//") == 1
    text = text.replace("mirrorq://127.0.0.1:7400//", url).replace(
        "timeout=10", f"timeout={WAIT_S}"
    )
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "1"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        called = [sys.executable, "shop.py"]
        done = subprocess.run(called, cwd=tmp_path, capture_output=True, timeout=2 * WAIT_S)
        assert (done.returncode, done.stdout) == (0, b"5\n"), done.stderr.decode()
    finally:
        worker.terminate()
        assert worker.wait(WAIT_S) == 0, (tmp_path / "worker.log").read_text()
    assert os.path.getsize(tmp_path / "worker.log")
