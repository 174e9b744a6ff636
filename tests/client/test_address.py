"""Where a client connects to, as one value of a settings file or of the environment."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mirrorq
from mirrorq import AuthenticationError, Config, ConfigError, NoQuorum
from mirrorq.cli import main
from mirrorq.client.address import Address
from mirrorq.demo.ports import free_ports

WAIT_S = 60


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIRRORQ_URL", "MIRRORQ_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("mirrorq://a:1,b:2//", ("tcp://a:1", "tcp://b:2")),
        ("mirrorq://a,localhost", ("tcp://a:7400", "tcp://127.0.0.1:7400")),
        ("mirrorq://[::1]:1/", ("tcp://[::1]:1",)),
        ("mirrorq://[::1]", ("tcp://[::1]:7400",)),
        ("tcp://a:1, ipc:///b", ("tcp://a:1", "ipc:///b")),
        (["tcp://a:1"], ("tcp://a:1",)),
        ({"a": "tcp://a:1", "b": "tcp://b:1"}, ("tcp://a:1", "tcp://b:1")),
        ({"url": "mirrorq://a:1"}, ("tcp://a:1",)),
        ({"url": ["tcp://a:1"], "timeout": None}, ("tcp://a:1",)),
    ],
)
def test_endpoints(text: Any, endpoints: tuple[str, ...]) -> None:
    address = Address.of(text)
    assert (address.endpoints, address.folder) == (endpoints, "")


def test_options() -> None:
    """In the URL, and beside it in a mapping, which comes first."""
    url = "mirrorq://my%20key@a?keys=/etc/k%20s&timeout=2.5&insecure=yes&fail_fast=0"
    address = Address.of(url)
    assert address.key == "my key"
    assert address.options == {
        "keys": "/etc/k s",
        "timeout": 2.5,
        "insecure": True,
        "fail_fast": False,
    }
    more = {"url": url, "timeout": "none", "config": {"failure_ms": 7000}}
    options = Address.of(more).options
    assert options["timeout"] is None
    assert options["config"] == Config(failure_ms=7000)
    folder = Address.of("mirrorq:///var/my%20shop/?linger=inf&name=a")
    assert folder.folder == "/var/my shop"
    assert folder.options == {"linger": math.inf, "name": "a"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "set some|a URL in MIRRORQ_URL"),
        (7, "a list, or a URL such as mirrorq://host:7400"),
        ("mirrorq://", r"^mirrorq://… names no host: mirrorq://127.0.0.1 is this machine"),
        ("mirrorq://me:secret@a//", r"^mirrorq://…a// has a password, but mirrorq uses keys"),
        ("mirrorq://a/shop", "has the path '/shop', but mirrorq has no virtual hosts"),
        (
            "mirrorq://a?tmeout=3",
            "'tmeout' is not an option of mirrorq://host: it has keys, insecure",
        ),
        (
            "mirrorq:///a?insecure=1",
            "'insecure' is not an option of mirrorq:///folder: it has linger",
        ),
        ("mirrorq://a?timeout=soon", "timeout is 'soon': it must be seconds, or none"),
        ("mirrorq://a?timeout=-1", "timeout is '-1'"),
        ("mirrorq://a?insecure=maybe", "insecure is 'maybe': it must be 1 or 0"),
        ({"url": "mirrorq://a", "config": {"failures": 1}}, "Config has no setting 'failures'"),
        ({"url": "mirrorq://a", "config": 1}, "config is 1: it must be a Config or a mapping"),
        ("mirrorq://me@127.0.0.1", "names the key 'me' but not its directory"),
    ],
)
def test_what_is_no_address(given: Any, why: str) -> None:
    """Refused before anything is tried, and no secret is said."""
    with pytest.raises(ConfigError, match=why) as raised:
        mirrorq.connect(given, timeout=0)
    assert "secret@" not in str(raised.value)


def test_a_wrong_url_from_the_environment_says_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MIRRORQ_URL", "mirrorq://a/shop")
    with pytest.raises(ConfigError, match="variable MIRRORQ_URL: mirrorq:"):
        mirrorq.connect(timeout=0)


def test_a_url_from_the_environment(node: mirrorq.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """For connect() and for commands."""
    monkeypatch.setenv("MIRRORQ_URL", node.listening.replace("tcp", "mirrorq"))
    with mirrorq.connect() as client:
        client.wait_ready(WAIT_S)
        client.queue("q", timeout=WAIT_S).put(b"1").result(WAIT_S)
    done = CliRunner().invoke(main, ["queue", "ls", "--wait", str(WAIT_S)])
    assert (done.exit_code, "q\t" in done.output) == (0, True), done.output


def test_a_folder_is_this_machines_node(tmp_path: Path) -> None:
    settings: Mapping[str, Any] = {"url": f"mirrorq://{tmp_path / 'a'}", "linger": 0}
    with mirrorq.connect(settings, timeout=WAIT_S) as client:
        assert client.entry_node == "local"
        assert client.queue("q", timeout=WAIT_S).put(b"1").result(WAIT_S) == 1


def test_keys_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key@`, and the folder in the URL or the environment; another one's key stays another's."""
    for words in (["a", "--role", "peer"], ["web", "--write", "q"], ["eve"]):
        done = CliRunner().invoke(main, ["key", "new", *words, "--keys", str(tmp_path / "keys")])
        assert done.exit_code == 0, done.output
    port = free_ports(1)[0]
    security = mirrorq.Security.load(tmp_path / "keys", "a")
    listen = f"tcp://127.0.0.1:{port}"
    with mirrorq.Node("a", path=tmp_path / "a", listen=listen, security=security) as node:
        node.wait_ready(WAIT_S)
        node.queue("q", timeout=WAIT_S)
        url = f"mirrorq://web@127.0.0.1:{port}?timeout={WAIT_S}"
        with mirrorq.connect(f"{url}&keys={tmp_path / 'keys'}") as client:
            client.queue("q", passive=True, timeout=WAIT_S).put(b"1").result(WAIT_S)
        monkeypatch.setenv("MIRRORQ_KEYS", str(tmp_path / "keys"))
        with mirrorq.connect(url) as client:
            assert [one.key for one in node._attendance().clients] == ["web"]
        with pytest.raises(AuthenticationError, match="requires keys"):
            mirrorq.connect(f"mirrorq://127.0.0.1:{port}?timeout={WAIT_S}")
        with pytest.raises(ConfigError, match="and given by security= too"):
            mirrorq.connect(url, security=security)


def test_nothing_listens() -> None:
    """Told so, it is not waited for: the error names what was tried and why it is in vain."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        tried = rf"no node listens: tcp://127.0.0.1:{port} \(nothing listens there\), ipc:///none/x"
        absent = [f"tcp://127.0.0.1:{port}", "ipc:///none/x"]
        with pytest.raises(NoQuorum, match=tried):
            mirrorq.connect(absent, fail_fast=True, timeout=None)
        with pytest.raises(NoQuorum, match="no node listens"):
            mirrorq.connect(f"mirrorq://127.0.0.1:{port}?fail_fast=1&timeout=none")


def test_one_that_listens_is_enough(node: mirrorq.Node) -> None:
    endpoints = ["ipc:///none/x", node.listening]
    with mirrorq.connect(endpoints, fail_fast=True, timeout=WAIT_S) as client:
        assert client.entry_node == "a"
