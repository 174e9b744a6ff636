"""What CI does about a browser: it never fails or asks for want of one. apt-get is a fake."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "chromium"
RUN_S = 60
TOOLS = ("bash", "sh", "env", "timeout", "mktemp", "rm", "tail", "cat", "chmod", "sleep")


class Machine:
    """A PATH on which there is just what a test puts there."""

    def __init__(self, path: Path, *, root: bool = True) -> None:
        self.path = path
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (path / tool).symlink_to(found)
        self.put("id", f"echo {0 if root else 1000}")

    def put(self, name: str, *lines: str) -> None:
        """A command."""
        script = self.path / name
        script.write_text("\n".join(("#!/usr/bin/env bash", *lines, "")))
        script.chmod(0o755)

    def run(self, seconds: int = RUN_S) -> tuple[int, str]:
        """Exit status and the one line that it says."""
        environment = {"PATH": str(self.path), "CHROMIUM_S": str(seconds)}
        done = subprocess.run(
            [str(self.path / "bash"), str(SCRIPT)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        return done.returncode, done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def installs(machine: Machine) -> tuple[str, ...]:
    """Lines of an apt-get that does what it should."""
    made = [f'"{machine.path}/{name}"' for name in ("chromium", "chromedriver")]
    copies = [f'cat "$0" > {path} && chmod +x {path}' for path in made]
    return ('case "$*" in', "*install*)", *copies, ";; esac")


def test_it_is_installed_where_that_may_be_done(machine: Machine) -> None:
    """Quietly, and not a second time."""
    machine.put("apt-get", "echo chatter; echo complaints >&2", *installs(machine))
    assert machine.run() == (0, "Chromium was installed.\n")
    machine.put("apt-get", "exit 1")
    assert machine.run() == (0, "Chromium is there already.\n")


def test_sudo_is_used_when_it_asks_for_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, root=False)
    machine.put("apt-get", *installs(machine))
    status, said = machine.run()
    assert status == 1
    assert "not root, and there is no sudo without a password" in said
    machine.put("sudo", '[[ $1 == -n ]] && shift && exec "$@"')
    machine.put("true", "exit 0")
    assert machine.run() == (0, "Chromium was installed.\n")


@pytest.mark.parametrize(
    ("lines", "seconds", "why"),
    [
        (("echo 'E: Unable to locate package' >&2", "exit 100"), RUN_S, "100: E: Unable to locate"),
        (("exit 0",), RUN_S, "apt-get ended with 0"),
        (("sleep 300",), 1, "took longer than 1 s"),
    ],
)
def test_what_apt_does_wrong_is_one_sentence(
    machine: Machine, lines: tuple[str, ...], seconds: int, why: str
) -> None:
    """It fails, it says that it is done and is not, it hangs."""
    machine.put("apt-get", *lines)
    status, said = machine.run(seconds)
    assert status == 1
    assert why in said


def test_a_machine_without_apt_is_named(machine: Machine) -> None:
    assert machine.run() == (
        1,
        "Chromium is not there and was not installed: this machine has no apt-get.\n",
    )


def test_ci_runs_the_browser_after_the_rest() -> None:
    """And both scripts may be run."""
    text = SCRIPT.with_name("run").read_text()
    assert text.index(".ci/chromium") < text.index(" test <") < text.index("make test-browser <")
    assert os.access(SCRIPT, os.X_OK)
    assert os.access(SCRIPT.with_name("run"), os.X_OK)
