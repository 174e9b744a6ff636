"""Celery over three nodes, while nodes and workers are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
from test_celery import DEADLINE_S, Workers, call, until

import mirrorq

NODE = """
import json, sys, mirrorq
name, path, peers = sys.argv[1:]
with mirrorq.Node(name, path=path, peers=json.loads(peers)) as node:
    node.wait_ready(60)
    print("ready", flush=True)
    sys.stdin.read()
"""


class Nodes:
    """Three nodes, each a process that ends with the test."""

    def __init__(self, path: Path) -> None:
        from mirrorq.demo.ports import free_ports

        ports = dict(zip("abc", free_ports(3), strict=True))
        self.peers = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        self.url = f"mirrorq://{','.join(f'127.0.0.1:{port}' for port in ports.values())}//"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._path = path
        for name in "abc":
            self.start(name)
        for process in self.processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def start(self, name: str) -> None:
        """Start a node, again too; it is not waited for."""
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-c", NODE, name, str(self._path / name), json.dumps(self.peers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def end(self) -> None:
        """Kill them all."""
        for name in list(self.processes):
            self.kill(name)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def workers(nodes: Nodes, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(nodes.url, tmp_path)
    yield made
    made.end()


@pytest.fixture
def app(nodes: Nodes) -> Iterator[Any]:
    made = celery.Celery("shop", broker=nodes.url, backend="rpc://", set_as_current=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    "count",
    [pytest.param(600, id="600"), pytest.param(20_000, id="20000", marks=pytest.mark.scale)],
)
def test_nodes_and_workers_are_killed(app: Any, nodes: Nodes, workers: Workers, count: int) -> None:
    """The queue's master and a worker with its children are killed while tasks are published and
    run: each task is done at least once, each double says that it may be one, nothing is left."""
    published: list[int] = []
    failures: list[BaseException] = []

    def publish() -> None:
        mark = call(app, "mark")
        try:
            for number in range(count):
                mark.apply_async(args=(number,))
                published.append(number)
        except BaseException as error:
            failures.append(error)

    def done() -> set[int]:
        if not workers.log.exists():
            return set()
        return {int(line.split()[0]) for line in workers.log.read_text().splitlines()}

    def came(part: int) -> None:
        """Wait until so many are done, or publishing has failed."""
        until(lambda: failures or len(done()) >= part, DEADLINE_S + count / 20)
        assert failures == []

    running = [workers.start("-P", "prefork", "-c", "2") for _ in range(2)]
    publisher = threading.Thread(target=publish)
    publisher.start()
    came(count // 6)
    with mirrorq.connect(nodes.peers) as client, client.queue("celery", passive=True) as queue:
        until(lambda: queue.status().master)
        master = queue.status().master
    assert master is not None
    nodes.kill(master)
    came(count // 3)
    workers.kill(running[0])
    nodes.start(master)
    came(count // 2)
    workers.start("-P", "prefork", "-c", "2")
    came(count)
    publisher.join()
    assert published == list(range(count))

    lines = workers.log.read_text().splitlines()
    first = [line for line in lines if line.endswith(" first")]
    assert len(first) == len(set(first))
    with mirrorq.connect(nodes.peers) as client, client.queue("celery", passive=True) as queue:
        until(lambda: queue.status().messages == 0)
    print(f"{count} tasks, {len(lines) - count} of them again")
