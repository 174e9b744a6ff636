"""NATS JetStream, three servers, a stream with three replicas; the client is nats-py."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compare.peer import (
    OUTCOME_S,
    START_S,
    Absent,
    Peer,
    Session,
    module_needed,
    program,
    server,
    wait_for_port,
)
from mirrorq.demo.ports import free_ports

SUBJECT = "compared"
FETCH = 1_000
SYNC_ALWAYS = (2, 10)
"""The version from which `sync_interval: always` is understood."""


class JetStream:
    """One connection, driven from the calling thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: Any, puller: Any) -> None:
        self._loop = loop
        self._stream = stream
        self._puller = puller

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        self._loop.run_until_complete(self._publish(body, count, in_flight))

    async def _publish(self, body: bytes, count: int, in_flight: int) -> None:
        room = asyncio.Semaphore(in_flight)
        pending = set()
        for _ in range(count):
            await room.acquire()
            future = await self._stream.publish_async(SUBJECT, body)
            pending.add(future)

            def ended(future: Any) -> None:
                room.release()
                pending.discard(future)
                future.result()

            future.add_done_callback(ended)
        await asyncio.wait_for(asyncio.gather(*pending), OUTCOME_S)

    def take(self, count: int) -> None:
        self._loop.run_until_complete(self._take(count))

    async def _take(self, count: int) -> None:
        while count:
            messages = await self._puller.fetch(min(FETCH, count), timeout=OUTCOME_S)
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync(timeout=OUTCOME_S)
            count -= len(messages)


def _version(path: str) -> tuple[int, int]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.rpartition("v")[2].split(".")[:2]
    return int(major), int(minor)


@contextmanager
def servers(directory: Path, sync: str) -> Iterator[list[int]]:
    """Start three servers of one cluster; gives their clients' ports."""
    module_needed("nats", "nats-py")
    path = program("nats-server", "nats-server")
    if sync and _version(path) < SYNC_ALWAYS:
        raise Absent(f"{path} is older than 2.10: it does not know sync_interval: always")
    ports = free_ports(6)
    clients, routes = ports[:3], ports[3:]
    with ExitStack() as stack:
        for number in range(3):
            file = directory / f"{number}.conf"
            others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            file.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{clients[number]}"\n'
                "max_payload: 8MB\n"
                f'jetstream {{ store_dir: "{directory}/{number}"\n{sync} }}\n'
                f'cluster {{ name: compared, listen: "127.0.0.1:{routes[number]}"\n'
                f"routes: [{others}] }}\n",
                encoding="utf-8",
            )
            log = directory / f"{number}.log"
            process = stack.enter_context(server([path, "-c", str(file)], log))
            wait_for_port(clients[number], process, log)
        yield clients


async def stream_of(ports: list[int]) -> tuple[Any, Any]:
    """Connect, and make the stream with three replicas; gives the connection and JetStream."""
    import nats
    from nats.js.api import RetentionPolicy, StorageType

    connection = await nats.connect([f"nats://127.0.0.1:{port}" for port in ports])
    stream = connection.jetstream(publish_async_max_pending=1 << 20)
    deadline = time.monotonic() + START_S
    while True:  # the cluster elects its leader first
        try:
            await stream.add_stream(
                name="compared",
                subjects=[SUBJECT],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                num_replicas=3,
            )
            return connection, stream
        except nats.errors.Error as error:
            if time.monotonic() > deadline:
                raise Absent(f"no stream after {START_S:.0f} s: {error}") from error
            await asyncio.sleep(0.2)


async def _puller(stream: Any) -> Any:
    from nats.js.api import ConsumerConfig

    return await stream.pull_subscribe(
        SUBJECT, "taker", config=ConsumerConfig(max_ack_pending=1 << 20)
    )


@contextmanager
def _start(directory: Path, sync: str) -> Iterator[Session]:
    with ExitStack() as stack:
        ports = stack.enter_context(servers(directory, sync))
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        connection, stream = loop.run_until_complete(stream_of(ports))
        stack.callback(lambda: loop.run_until_complete(connection.close()))
        yield JetStream(loop, stream, loop.run_until_complete(_puller(stream)))


PEERS = [
    Peer(
        "NATS JetStream R3",
        "replicated",
        "page cache of two of three nodes",
        lambda path: _start(path, ""),
    ),
    Peer(
        "NATS JetStream R3, sync always",
        "replicated",
        "fsynced on two of three nodes",
        lambda path: _start(path, "sync_interval: always"),
    ),
]
