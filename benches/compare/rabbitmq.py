"""RabbitMQ, three nodes on loopback: a quorum queue and, where it still has them, a mirrored one.

The client is pika with asynchronous confirms, which is what a Python service gets.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compare.peer import (
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

LIBRARY = "/usr/lib/rabbitmq/bin"
"""Debian's own programs here do not change to another user, as those on its PATH do."""
QUEUE = "compared"
PREFETCH = 2_000
ACK_EVERY = 500


class Channel:
    """One connection and channel, whose loop runs in the calling thread while there is work."""

    def __init__(self, port: int, arguments: dict[str, Any]) -> None:
        import pika

        self._pika = pika
        self._arguments = arguments
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._failure = ""
        self._body, self._left, self._open, self._in_flight = b"", 0, 0, 1
        self._lowest = 1
        self._early: set[int] = set()
        self._taken = self._wanted = 0
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._failed,
            on_close_callback=self._failed,
        )
        self._run()

    def close(self) -> None:
        self._failure = ""
        self._connection.close()
        self._connection.ioloop.start()

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        self._body, self._left, self._in_flight = body, count, in_flight
        self._fill()
        self._run()

    def take(self, count: int) -> None:
        self._taken, self._wanted = 0, count
        tag = self._channel.basic_consume(QUEUE, self._delivered)
        self._run()
        # The answer to this comes after all acks were read.
        self._channel.basic_cancel(tag, callback=self._stop)
        self._run()

    def _run(self) -> None:
        self._connection.ioloop.start()
        if self._failure:
            raise Absent(f"RabbitMQ ended the connection: {self._failure}")

    def _stop(self, *ignored: Any) -> None:
        self._connection.ioloop.stop()

    def _failed(self, connection: Any, reason: Any) -> None:
        self._failure = str(reason)
        self._stop()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._failed)
        channel.confirm_delivery(self._on_confirm)
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.queue_declare(QUEUE, durable=True, arguments=self._arguments, callback=self._stop)

    def _fill(self) -> None:
        while self._left and self._open < self._in_flight:
            self._channel.basic_publish("", QUEUE, self._body, self._properties)
            self._left -= 1
            self._open += 1

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, self._pika.spec.Basic.Nack):
            self._failure = "it refused a message"
            self._stop()
        tag = method.delivery_tag
        if method.multiple:
            ended = set(range(self._lowest, tag + 1))
            self._open -= len(ended - self._early)
            self._early -= ended
            self._lowest = max(self._lowest, tag + 1)
        else:
            self._open -= 1
            self._early.add(tag)
        while self._lowest in self._early:
            self._early.remove(self._lowest)
            self._lowest += 1
        self._fill()
        if not self._open:
            self._stop()

    def _delivered(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._taken += 1
        if self._taken % ACK_EVERY == 0 or self._taken == self._wanted:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self._taken == self._wanted:
            self._stop()


@contextmanager
def nodes(directory: Path, count: int) -> Iterator[tuple[list[int], list[str]]]:
    """Start so many of one cluster; gives their ports, and how rabbitmqctl is called."""
    path = program("rabbitmq-server", "rabbitmq-server", f"{LIBRARY}/rabbitmq-server")
    control = program("rabbitmqctl", "rabbitmq-server", f"{LIBRARY}/rabbitmqctl")
    ports = free_ports(2 * count + 1)
    numbers = range(1, count + 1)
    (directory / "plugins").write_text("[].\n", encoding="ascii")
    settings = ["cluster_formation.peer_discovery_backend = classic_config"]
    settings += [
        f"cluster_formation.classic_config.nodes.{number} = {_name(ports, number)}"
        for number in numbers
    ]
    common = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(ports[-1]),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
    }
    with ExitStack() as stack:
        epmd = program("epmd", "erlang-base")
        stack.enter_context(server([epmd], directory / "epmd.log", common))
        for number in numbers:
            file = directory / f"{number}.conf"
            own = [f"listeners.tcp.1 = 127.0.0.1:{ports[number - 1]}"]
            file.write_text("\n".join(settings + own) + "\n", encoding="ascii")
            environment = common | {
                "RABBITMQ_NODENAME": _name(ports, number),
                "RABBITMQ_CONFIG_FILE": str(file),
                "RABBITMQ_DIST_PORT": str(ports[number - 1 + count]),
            }
            log = directory / f"{number}.log"
            process = stack.enter_context(server([path], log, environment))
            wait_for_port(ports[number - 1], process, log)
        command = ["env", *(f"{key}={value}" for key, value in common.items())]
        command += [control, "-n", _name(ports, 1)]
        _said([*command, "await_online_nodes", str(count), "--timeout", str(int(START_S))])
        yield ports, command


@contextmanager
def _start(
    directory: Path, arguments: dict[str, Any], prepare: Callable[[list[str]], None] | None
) -> Iterator[Session]:
    module_needed("pika", "pika")
    with nodes(directory, 3) as (ports, command), ExitStack() as stack:
        if prepare is not None:
            prepare(command)
        channel = Channel(ports[0], arguments)
        stack.callback(channel.close)
        yield channel


def _name(ports: list[int], number: int) -> str:
    """Of its own in each run, so that two runs at once do not meet."""
    return f"compared{ports[number - 1]}@localhost"


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Absent(f"rabbitmqctl ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _mirror_all(command: list[str]) -> None:
    definition = '{"ha-mode":"all","ha-sync-mode":"automatic"}'
    _said([*command, "set_policy", "compared", ".*", definition])


QUORUM = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
PEERS = [
    Peer(
        "RabbitMQ, quorum queue",
        "replicated",
        "fsynced on two of three nodes",
        lambda path: _start(path, QUORUM, None),
    ),
    Peer(
        "RabbitMQ, mirrored queue",
        "replicated",
        "on three nodes, fsynced in batches",
        lambda path: _start(path, {}, _mirror_all),
    ),
]
