"""docs/frameworks.md: its programs are those of examples/, and run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from shop import DEADLINE_S
from tests.kit import until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```python title="(.*?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PROGRAMS = dict(BLOCK.findall((ROOT / "docs" / "frameworks.md").read_text("utf-8")))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a node that starts when somebody wants it, and ends when nobody does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRRORQ_URL", f"mirrorq://{tmp_path / 'node'}?linger=0&timeout=60")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def program_of(name: str) -> str:
    """Write a program of the page down; it is the example of its name."""
    code = PROGRAMS[name]
    assert (ROOT / "examples" / name).read_text("utf-8") == code
    Path(name).write_text(code, "utf-8")
    return name


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def said(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers, ended with the test."""
    workers: list[subprocess.Popen[bytes]] = []
    yield workers
    for worker in workers:
        worker.terminate()
        assert worker.wait(DEADLINE_S) is not None


def work(workers: list[subprocess.Popen[bytes]], *command: str) -> Path:
    """Start one; what it says is in the file."""
    out = Path("worker.log").absolute()
    with out.open("wb") as log:
        workers.append(subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log))
    return out


def test_dramatiq(said: list[subprocess.Popen[bytes]]) -> None:
    pytest.importorskip("dramatiq")
    name = program_of("dramatiq_shop.py")
    log = work(said, "dramatiq", name.removesuffix(".py"), "--processes", "1", "--threads", "1")
    assert run(name) == "sent\n"
    until(lambda: "roasted Yirgacheffe\n" in log.read_text())
    until(lambda: "roasted Sidamo\n" in log.read_text())


def test_django(said: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Django 6; with an older one its import and its apps are what the page says."""
    pytest.importorskip("django_site")
    for name in ("settings.py", "tasks.py", "ask.py"):
        code = PROGRAMS[name]
        assert (ROOT / "examples" / "django_shop" / name).read_text("utf-8") == code
        if find_spec("django.tasks") is None:
            code = code.replace("from django.tasks", "from django_tasks")
            code = code.replace("INSTALLED_APPS = [", 'INSTALLED_APPS = ["django_tasks", ')
        Path(name).write_text(code, "utf-8")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    work(said, "django", "mirrorq_worker")
    assert run("ask.py") == "roasted Yirgacheffe\n"


def test_taskiq(said: list[subprocess.Popen[bytes]]) -> None:
    pytest.importorskip("taskiq")
    name = program_of("taskiq_shop.py")
    work(said, "taskiq", "worker", f"{name.removesuffix('.py')}:broker", "--workers", "1")
    assert run(name) == "5\n"


def test_opentelemetry() -> None:
    """One trace for all that belongs to one order."""
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.instrumentation")
    lines = [line.split() for line in run(program_of("traces.py")).splitlines()]
    assert {" ".join(words[:-1]) for words in lines} == {"order", "send orders", "process orders"}
    assert len({words[-1] for words in lines}) == 1
