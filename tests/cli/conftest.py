"""A node that `mirrorq node run` runs, and the command run against it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.kit import free_endpoint

from .running import COMMAND_S, Run, run_alone, start_node


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a cluster of one node listens."""
    path = tmp_path_factory.mktemp("node")
    where = free_endpoint()
    with start_node(path, where) as node:
        yield where
        node.terminate()
        assert node.wait(COMMAND_S) == 0


@pytest.fixture
def run(endpoint: str) -> Run:
    """Run a command against the node."""

    def run_connected(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return run_alone(*arguments, "--connect", endpoint, given=given)

    return run_connected
