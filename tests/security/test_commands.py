"""The commands with keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.kit import free_endpoint
from tests.security.keys import KeyRing

from mirrorq.cli import main
from mirrorq.client.client import connect
from mirrorq.node.node import Node

pytestmark = pytest.mark.real


def test_a_command_takes_its_key_from_a_file_or_the_environment(
    node: Node, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--keys and MIRRORQ_KEYS; without, the refusal says what to do."""
    command = ["status", "--json", "--connect", node.endpoint]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert "--keys" in refused.output
    secret = str(ring.directory / "admin.secret")
    given = CliRunner().invoke(main, [*command, "--keys", secret])
    assert given.exit_code == 0, given.output
    monkeypatch.setenv("MIRRORQ_KEYS", secret)
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 0, found.output
    assert [each["name"] for each in json.loads(found.stdout)["nodes"]] == ["a"]


def test_a_directory_with_several_secrets_is_not_guessed_from(node: Node, ring: KeyRing) -> None:
    command = ["status", "--connect", node.endpoint, "--keys", str(ring.directory)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "several secret keys" in result.output


def test_the_node_command_takes_the_key_of_its_name(tmp_path: Path, ring: KeyRing) -> None:
    """A process of its own, with nothing but a directory."""
    endpoint = free_endpoint()
    command = [sys.executable, "-m", "mirrorq", "node", "run", "a", "--path", str(tmp_path / "a")]
    command += ["--listen", endpoint, "--keys", str(ring.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            with connect(endpoint, security=ring.of("admin"), timeout=60) as client:
                assert client.queue("orders").put(b"x").result(30) == 1
        finally:
            running.terminate()
            _, log = running.communicate(timeout=60)
    assert ring.of("a").secret_key.encode() not in log
