"""The brokers, each on loopback, with its data in a directory that is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mirrorq
from compare import rabbitmq
from compare.peer import START_S, module_needed, program, server, wait_for_port
from mirrorq.demo.ports import free_ports


class Broker(NamedTuple):
    """One row of the table."""

    name: str
    told: str
    """What holds when `delay()` returns."""
    start: Callable[[Path], AbstractContextManager[str]]
    """Start it; gives its URL."""
    options: dict[str, Any]
    """`broker_transport_options`."""


def start_nodes(
    stack: ExitStack, directory: Path, names: str, durability: str
) -> tuple[str, dict[str, subprocess.Popen[bytes]]]:
    """Nodes, each a process, of which a confirm means this; their URL and the processes."""
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    processes = {}
    for name, port in ports.items():
        command = [sys.executable, "-m", "mirrorq", "node", "run", name]
        command += ["--path", str(directory / name)]
        for other, at in ports.items():
            command += ["--peer", f"{other}=tcp://127.0.0.1:{at}"]
        log = directory / f"{name}.log"
        processes[name] = stack.enter_context(server(command, log))
        wait_for_port(port, processes[name], log)
    url = "mirrorq://" + ",".join(f"127.0.0.1:{port}" for port in ports.values()) + "//"
    with mirrorq.connect(url, timeout=START_S) as client:
        client.set_policy("durability", ".*", {"durability": durability})
    return url, processes


@contextmanager
def mirrorq_nodes(directory: Path, names: str, durability: str = "fsync") -> Iterator[str]:
    """A cluster, as long as the block lasts."""
    with ExitStack() as stack:
        yield start_nodes(stack, directory, names, durability)[0]


def redis_command(directory: Path, port: int, *options: str) -> list[str]:
    """How a Redis is started that keeps an append-only file."""
    path = program("redis-server", "redis-server")
    directory.mkdir(exist_ok=True)
    common = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", "")
    return [path, *common, "--appendonly", "yes", "--appendfsync", "everysec", *options]


@contextmanager
def redis_with_replica(directory: Path) -> Iterator[str]:
    """A Redis with `appendfsync everysec`, and one that replicates it."""
    module_needed("redis", "redis")
    first, second = free_ports(2)
    with ExitStack() as stack:
        for port, options in ((first, ()), (second, ("--replicaof", f"127.0.0.1 {first}"))):
            log = directory / f"{port}.log"
            command = redis_command(directory / str(port), port, *options)
            wait_for_port(port, stack.enter_context(server(command, log)), log)
        yield f"redis://127.0.0.1:{first}/0"


@contextmanager
def rabbitmq_node(directory: Path) -> Iterator[str]:
    """One RabbitMQ."""
    with rabbitmq.nodes(directory, 1) as (ports, _command):
        yield f"amqp://guest:guest@127.0.0.1:{ports[0]}//"


BROKERS = [
    Broker(
        "mirrorq, three nodes",
        "on disk, fsynced, on all three",
        lambda path: mirrorq_nodes(path, "abc"),
        {},
    ),
    Broker(
        "mirrorq, three nodes, `confirm: later`",
        "accepted, sent again if a node dies",
        lambda path: mirrorq_nodes(path, "abc"),
        {"confirm": "later"},
    ),
    Broker(
        "mirrorq, three nodes, `durability: replicated`",
        "in three memories, soon on disk",
        lambda path: mirrorq_nodes(path, "abc", "replicated"),
        {},
    ),
    Broker("mirrorq, one node", "on disk, fsynced", lambda path: mirrorq_nodes(path, "a"), {}),
    Broker("Redis, AOF everysec, one replica", "in one memory", redis_with_replica, {}),
    Broker("RabbitMQ, one node, confirms", "stored", rabbitmq_node, {"confirm_publish": True}),
    Broker("RabbitMQ, one node", "sent", rabbitmq_node, {}),
]


def environment(url: str, options: dict[str, Any]) -> dict[str, str]:
    """What `brokers.tasks` reads."""
    return {"BENCH_BROKER": url, "BENCH_OPTIONS": json.dumps(options)}
