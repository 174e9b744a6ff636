"""What a broker has said yes to and does not have after its machine has died.

The machine dies as SIGKILL of its process, and all that no fsync has brought to disk is cut off:
`synced.c` notes how much that was. Where there is another machine, it takes over with what it has.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mirrorq
from brokers.servers import redis_command, start_nodes
from compare.peer import START_S, module_needed, server, wait_for_port
from mirrorq.demo.ports import free_ports

QUEUE = "celery"
RUN_S = 3.0
"""So long tasks are sent before the machine dies: a few of Redis's fsyncs."""
SHIM = Path(__file__).with_name("synced.c")


def report(directory: Path, kills: int) -> str:
    """The table of losses."""
    module_needed("redis", "redis")
    rows: list[tuple[str, Callable[[Path], tuple[int, int]]]] = [
        (
            f"mirrorq, three nodes, `durability: {kind}`: another one takes over",
            partial(node_dies, durability=kind),
        )
        for kind in ("fsync", "replicated")
    ]
    library = directory / "synced.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(command, check=True)
    for what, takes_over in (("the replica takes over", True), ("it starts again", False)):
        dies = partial(redis_dies, library=library, takes_over=takes_over)
        rows.append((f"Redis, AOF everysec, one replica: {what}", dies))
    lines = ["| the broker's machine dies | said yes to | of these lost |", "|---|---:|---:|"]
    for name, dies in rows:
        found = []
        for _ in range(kills):
            with tempfile.TemporaryDirectory(dir=directory) as place:
                found.append(dies(Path(place)))
        said, lost = sum(one for one, _ in found), sum(two for _, two in found)
        each = ", ".join(str(two) for _, two in found)
        lines.append(f"| {name}, {kills} times | {said:,} | {lost:,} ({each}) |")
    return "\n".join(lines)


def node_dies(directory: Path, durability: str) -> tuple[int, int]:
    """(messages that were confirmed, those of them that are not there afterwards)"""
    with ExitStack() as stack:
        url, processes = start_nodes(stack, directory, "abc", durability)
        client = stack.enter_context(mirrorq.connect(url, timeout=START_S))
        queue = client.queue(QUEUE, timeout=START_S)
        queue.put(b"-1").result(START_S)
        master = queue.status().master
        assert master is not None
        process = processes[master]
        killer = threading.Timer(RUN_S, process.kill)
        killer.start()
        said = 0
        while process.poll() is None:
            queue.put(str(said).encode()).result(START_S)
            said += 1
        killer.join()
        found = set()
        while len(found) <= said:
            try:
                message = queue.get(timeout=START_S)
            except mirrorq.Empty:
                break
            found.add(int(message.body))
            message.ack()
        return said, len(set(range(said)) - found)


def redis_dies(directory: Path, library: Path, takes_over: bool) -> tuple[int, int]:
    """(messages that Redis said yes to, those of them that are not there afterwards)"""
    import redis

    first, second = free_ports(2)
    notes = directory / "synced"
    shim = {"LD_PRELOAD": str(library), "SYNCED": str(notes)}
    with ExitStack() as stack:
        log = directory / "first.log"
        command = redis_command(directory / "first", first)
        process = stack.enter_context(server(command, log, shim))
        wait_for_port(first, process, log)
        other = redis_command(directory / "second", second, "--replicaof", f"127.0.0.1 {first}")
        replica = stack.enter_context(server(other, directory / "second.log"))
        wait_for_port(second, replica, directory / "second.log")
        follower = redis.Redis("127.0.0.1", second)
        while follower.info("replication")["master_link_status"] != "up":
            time.sleep(0.05)
        said = _send(redis.Redis("127.0.0.1", first), process)
        if takes_over:
            follower.replicaof("NO", "ONE")
            return said, said - _count(follower, said)
    _cut(directory / "first", notes)
    with ExitStack() as stack:
        log = directory / "again.log"
        again = stack.enter_context(server(redis_command(directory / "first", first), log))
        wait_for_port(first, again, log)
        return said, said - _count(redis.Redis("127.0.0.1", first), said)


def _send(client: Any, process: subprocess.Popen[bytes]) -> int:
    """Push as kombu does, one by one, until the server is killed; how many it said yes to."""
    import redis

    killer = threading.Timer(RUN_S, process.kill)
    killer.start()
    said = 0
    try:
        while True:
            client.lpush(QUEUE, str(said))
            said += 1
    except (redis.ConnectionError, redis.TimeoutError):
        process.wait()
        return said
    finally:
        killer.join()


def _cut(directory: Path, notes: Path) -> None:
    """Take from each file what no fsync has brought to disk."""
    lengths: dict[str, int] = {}
    for line in notes.read_text("utf-8").splitlines():
        length, _, path = line.partition(" ")
        lengths[path] = max(int(length), lengths.get(path, 0))
    for file in directory.rglob("*.aof"):
        kept = lengths.get(str(file), 0)
        if kept < file.stat().st_size:
            os.truncate(file, kept)


def _count(client: Any, said: int) -> int:
    """How many of those that it said yes to are there."""
    import redis

    while True:
        try:
            found = {int(one) for one in client.lrange(QUEUE, 0, -1)}
            return len(found & set(range(said)))
        except redis.BusyLoadingError:
            time.sleep(0.05)
