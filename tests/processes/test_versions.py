"""Processes that speak another version of the protocol are told so, by name."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorq import Node
from mirrorq.demo.ports import free_ports

from .cluster import DEADLINE_S, until

OTHER = """
import json, logging, sys, time
import mirrorq.wire.messages
mirrorq.wire.messages.VERSION = 2
import mirrorq

peers = json.loads(sys.argv[1])
for _ in range(30):  # on a busy machine the answer may come later than that
    try:
        mirrorq.connect(peers["a"], timeout=2)
    except mirrorq.NoQuorum as error:
        said = str(error)
        if "version" in said:
            break
print(said, flush=True)
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
with mirrorq.Node("b", path=sys.argv[2], peers=peers):
    sys.stdin.read()
"""


def test_another_version_is_refused_with_both_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client in the error of connect(); a node in its log and in that of the others."""
    ports = free_ports(2)
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip("ab", ports, strict=True)}
    with caplog.at_level(logging.WARNING, "mirrorq"), Node("a", path=tmp_path / "a", peers=peers):
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, json.dumps(peers), str(tmp_path / "b")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert other.stdin is not None
            assert other.stdout is not None
            assert "a message has version 1 of the protocol, this node speaks 2" in (
                other.stdout.readline()
            )
            until(
                lambda: (
                    "b: a message has version 2 of the protocol, this node speaks 1: run the "
                    "same release" in caplog.text
                ),
                lambda: caplog.text,
            )
            for line in other.stdout:
                if "a: a message has version 1 of the protocol, this node speaks 2" in line:
                    break
            else:
                pytest.fail("node b never said so")
            other.stdin.close()
            assert other.wait(DEADLINE_S) == 0
        finally:
            other.kill()
            other.wait()
            other.stdout.close()
