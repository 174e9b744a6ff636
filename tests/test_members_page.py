"""docs/members.md: its commands, in order, against real nodes, print what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, start_process, until
from tests.test_pages import text_of

pytestmark = pytest.mark.real

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTS = re.compile(r"mirrorq node run (\w+) ")
ENDED = re.compile(r"node (\w+) has ended\n")


def steps(text: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints); no command: what a node prints as it is stopped."""
    for block in BLOCK.findall(text):
        before, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        if before:
            yield "", before
        for part in parts:
            command, _, output = part.partition("\n")
            yield command, output


def fits(said: str, expected: str) -> bool:
    """Whether it was said, where `…` is anything."""
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def plain(said: str) -> str:
    """What a command said of the cluster, without what a busy machine changes: which node answers,
    which one is master, in which order the mirrors are, and alarms, as of a disk that was slow."""
    lines = []
    for line in said.splitlines(keepends=True):
        fields = line.split("\t")
        if fields[0] in ("alarm", "warning"):
            continue
        if fields[0] == "majority":
            line = re.sub(r"majority\t\w+\twithout node \w+", "majority", line)
        if len(fields) == 7 and fields[2] != "master":
            fields[2:4] = [",".join(sorted([fields[2], *fields[3].split(",")]))]
            line = "\t".join(fields)
        lines.append(re.sub(r"node \w+ may stop", "node may stop", line))
    return "".join(lines)


class Cluster:
    """Nodes as processes, and a shell with the variables that the page exports."""

    def __init__(self, ending: ExitStack, path: Path) -> None:
        self._ending = ending
        self._path = path
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._env = dict(os.environ)
        # The page's `mirrorq` is the one that is tested.
        script = path / "bin" / "mirrorq"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mirrorq "$@"\n')
        script.chmod(0o755)
        self._env["PATH"] = f"{script.parent}{os.pathsep}{self._env['PATH']}"

    def run(self, command: str, expected: str) -> None:
        """Run a line of the page. One that only looks is repeated until it says what it should."""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._env[name] = value
            return
        started = STARTS.match(command)
        if started:
            assert self.start(started[1], command) == expected
            return
        if re.match("mirrorq (check|queue ls)", command):
            said: list[str] = []

            def looked() -> bool:
                said[:] = [self._said(command)]
                return fits(plain(said[0]), plain(expected))

            until(looked, lambda: (command, said))
        else:
            said = [self._said(command)]
            assert fits(said[0], expected), (command, said)

    def _said(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            env=self._env,
            cwd=self._path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.stdout

    def start(self, name: str, command: str) -> str:
        """Start a node; return its first line."""
        with (self._path / f"{name}.log").open("a") as log:
            process = start_process(
                self._ending,
                f"exec {command}",
                shell=True,
                env=self._env,
                cwd=self._path,
                stderr=log,
            )
        self._processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (self._path / f"{name}.log").read_text()
        return line

    def stop(self, name: str) -> str:
        """Stop a node by SIGTERM; return what it says."""
        process = self._processes[name]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        return said

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait(DEADLINE_S)


def test_every_command_prints_what_the_page_says(tmp_path: Path) -> None:
    """A node is added, removed, replaced; and a witness takes the place of a third."""
    text = text_of("members.md")
    endpoints = re.findall(r"tcp://127\.0\.0\.1:\d+", text)
    a, b = endpoints[:2]
    gone = re.search(r"node c at (tcp://[\d.:]+) does not run", text)
    assert gone
    peers = f"--peer a={a} --peer b={b} --peer c={gone[1]}"
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert len(sections) == 6
    with ExitStack() as ending:
        cluster = Cluster(ending, tmp_path)
        for name, role in {"a": "peer", "b": "peer", "c": "peer", "ops": "admin"}.items():
            cluster.run(f"mirrorq key new {name} --role {role} --keys keys", "…")
        for name in "abc":
            cluster.start(name, f"mirrorq node run {name} --path {name} --keys keys {peers}")
        count = 0
        for section in sections:
            if section.startswith("Replace a dead machine"):
                cluster.kill("c")
            if section.startswith("Add a witness"):
                cluster.stop("c")
                until(lambda: cluster._said("mirrorq node forget c") == "forgotten: c\n")
            for command, expected in steps(section):
                count += 1
                if command:
                    cluster.run(command, expected)
                else:
                    ended = ENDED.fullmatch(expected)
                    assert ended
                    assert cluster.stop(ended[1]) == expected
        assert count == 24
