"""`mirrorq node run --config FILE`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from mirrorq.cli import main
from mirrorq.cli.node_file import NodeFile
from mirrorq.config import Config
from mirrorq.demo.ports import free_ports
from mirrorq.errors import ConfigError

from .running import COMMAND, COMMAND_S, run_alone


def test_all_that_a_node_takes_is_read(tmp_path: Path) -> None:
    """Every argument and every limit; paths are relative to the file."""
    limits = {field.name: field.default for field in attrs.fields(Config)}
    limits["heartbeat_ms"] = 123
    lines = [
        'name = "a"', 'path = "store"', 'listen = "tcp://127.0.0.1:1"', 'join = ["x", "y"]',
        "witness = true", 'keys = "/etc/keys"', "insecure = false", 'metrics = "9100"',
        'dashboard = "9101"',
        "[peers]", 'a = "tcp://127.0.0.1:1"',
        "[config]", *(f"{name} = {json.dumps(value)}" for name, value in limits.items()),
    ]  # fmt: skip
    (tmp_path / "node.toml").write_text("\n".join(lines))
    read = NodeFile.read(tmp_path / "node.toml")
    assert read == NodeFile(
        name="a",
        path=tmp_path / "store",
        peers={"a": "tcp://127.0.0.1:1"},
        listen="tcp://127.0.0.1:1",
        join=["x", "y"],
        witness=True,
        keys=Path("/etc/keys"),
        insecure=False,
        metrics="9100",
        dashboard="9101",
        config=Config(heartbeat_ms=123),
    )
    assert read.over(NodeFile(name="b")) == attrs.evolve(read, name="b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nmae = 'a'\npath = 'x'\npears = 1", "nmae, pears"),
        ("[config]\nheartbeat = 1", "[config], says heartbeat"),
        ("[config]\nheartbeat_ms = 'soon'", "heartbeat_ms is 'soon': it must be a whole number"),
        ("[config]\nheartbeat_ms = true", "heartbeat_ms is True"),
        ("[config]\nlease_ms = 5000", "lease_ms 5000 must be below"),
        ("[config]\nheartbeat_ms = 0", "heartbeat_ms is 0"),
        ("config = 1", "it must be a table"),
        ("name = 1", "it must be a string"),
        ("join = [1]", "a list of endpoints"),
        ("witness = 'yes'", "true or false"),
        ("[peers]\na = 1", "tcp://host:port"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_what_no_node_goes_by_is_named(tmp_path: Path, text: str, words: str) -> None:
    """Unknown keys and wrong values: one line with them, status 1, and no node."""
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        NodeFile.read(file)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "options", "keys"),
    [
        ("", [], "environment"),
        ('keys = "/file"', [], "/file"),
        ('keys = "/file"', ["--keys", "option"], "option"),
    ],
)
def test_the_keys_of_the_environment_are_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, options: list[str], keys: str
) -> None:
    """The file's keys replace them, and an option replaces the file's."""
    found: list[NodeFile] = []
    module = sys.modules["mirrorq.cli.node"]
    monkeypatch.setattr(module, "_run", lambda settings, *_: found.append(settings))
    file = tmp_path / "node.toml"
    file.write_text(f'name = "a"\npath = "store"\n{line}')
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        words = ["node", "run", "--config", str(file), *options]
        done = CliRunner().invoke(main, words, env={"MIRRORQ_KEYS": "environment"})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert done.exit_code == 0, done.output
    assert [one.keys for one in found] == [Path(keys)]


def test_a_node_runs_by_its_file(tmp_path: Path) -> None:
    """With options that come before it; without a name, or with an unknown key, it does not."""
    (port,) = free_ports(1)
    file = tmp_path / "node.toml"
    text = f'path = "store"\n[peers]\na = "tcp://127.0.0.1:{port}"\n[config]\nheartbeat_ms = 200\n'
    file.write_text(text)
    assert run_alone("node", "run", "--config", str(file)).returncode == 2
    file.write_text(f"colour = 1\n{text}")
    refused = run_alone("node", "run", "a", "--config", str(file))
    assert refused.returncode == 1
    assert refused.stderr.count(b"\n") == 1
    assert b"says colour" in refused.stderr
    file.write_text(text)
    with subprocess.Popen(
        [*COMMAND, "node", "run", "a", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == f"node a runs on tcp://127.0.0.1:{port}\n".encode()
            node.send_signal(signal.SIGTERM)
            assert node.wait(COMMAND_S) == 0
        finally:
            node.kill()
    assert (tmp_path / "store" / "data.mdb").exists()
