"""Endpoints as users write them, and who may be listened to."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq.errors import ConfigError
from mirrorq.security.settings import check_listen
from mirrorq.transport.endpoint import Endpoint, absolute, lasting, parse_endpoint, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("tcp://127.0.0.1:7400", "127.0.0.1", 7400, ""),
        ("tcp://queue-1.example.com:1", "queue-1.example.com", 1, ""),
        ("tcp://[::1]:65535", "::1", 65535, ""),
        ("tcp://[fe80::1%eth0]:7400", "fe80::1%eth0", 7400, ""),
        ("ipc:///tmp/node", "", 0, "/tmp/node"),
    ],
)
def test_endpoints(text: str, host: str, port: int, path: str) -> None:
    """Every form that can be connected to can be listened on, and reads back as written."""
    assert parse_endpoint(text) == parse_listen(text) == Endpoint(text, host, port, path)
    assert parse_endpoint(text).zmq_text == text


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://*:*", "tcp://0.0.0.0:7400"])
def test_endpoints_to_listen_on_only(text: str) -> None:
    """A free port or every address can be bound, but not connected to."""
    parse_listen(text)
    with pytest.raises(ConfigError, match="cannot be connected to"):
        parse_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:7400",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:7400/",
        "tcp://ho st:7400",
        "tcp://::1:7400",
        "tcp://[nonsense]:7400",
        "tcp://[fe80]:7400",
        "udp://host:7400",
        "inproc://x",
        "ipc://",
        "ipc://@abstract",
        "ipc:///" + "x" * 107,
        "ipc:///tmp/caf\udce9",  # as os.fsdecode reads a name that is no UTF-8
        None,
        7400,
    ],
)
def test_malformed_endpoints(text: str) -> None:
    """The error shows the text, and how to write it."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "listen", ["tcp://127.0.0.1:7400", "tcp://127.1.2.3:0", "tcp://[::1]:0", "ipc:///tmp/node"]
)
def test_loopback_needs_no_security(listen: str) -> None:
    """What only this machine reaches may be listened on."""
    check_listen(listen, insecure=False)


@pytest.mark.parametrize(
    "listen",
    [
        "tcp://*:7400",
        "tcp://0.0.0.0:7400",
        "tcp://[::]:7400",
        "tcp://192.168.0.7:7400",
        "tcp://no-such-host.invalid:7400",
    ],
)
def test_the_network_does(listen: str) -> None:
    """What strangers may reach is refused, with what to do, unless the owner insists."""
    with pytest.raises(ConfigError, match="insecure=True"):
        check_listen(listen, insecure=False)
    check_listen(listen, insecure=True)


def test_localhost_is_loopback() -> None:
    """A name counts as loopback when all its addresses are."""
    check_listen("tcp://localhost:7400", insecure=False)


def test_a_socket_file_is_the_same_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a path that only its directory makes short enough."""
    monkeypatch.chdir(tmp_path)
    assert absolute("ipc://./a.sock") == lasting("ipc://a.sock") == f"ipc://{tmp_path}/a.sock"
    assert lasting("ipc:///run/a.sock") == "ipc:///run/a.sock"
    assert lasting("tcp://127.0.0.1:7400") == "tcp://127.0.0.1:7400"
    far = f"ipc://{'d' * 100}"
    assert (lasting(far), absolute(far)) == (far, f"ipc://{tmp_path}/{'d' * 100}")
