"""Names that a terminal obeys: refused where they are given, escaped where they are printed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorq import ConfigError, MirrorQError, Node
from mirrorq.cli import connecting
from mirrorq.node.endpoints import NodeEndpoints
from mirrorq.node.gateway.request_handler import command_error
from mirrorq.protocol.commands import DeclareExchange, SetPolicy
from mirrorq.protocol.printable import escaped, unprintable
from mirrorq.protocol.validation import declaration_error
from mirrorq.security.roles import Key
from mirrorq.transport.curve import new_key_pair

BAD = ["\x00", "\x1b[2J", "\r", "\n", "\t", "\x7f", "\x9b31m"]
BAD += ["\u2028", "\u2029", "\u202e", "\u2067"]
ENDPOINT = "tcp://127.0.0.1:1"
GOOD = ["orders.eu", "заказы", "注文", "a b", "é́", "👩‍🚀", "[bold]"]


@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_what_a_terminal_obeys_is_in_no_name(bad: str) -> None:
    """The error names the character; what is shown is one line without it."""
    name = f"orders{bad}eu"
    assert f"U+{ord(bad[0]):04X}" in unprintable("a name", name)
    assert escaped(name).isprintable()
    assert escaped(name, kept=bad[0]) == name


@pytest.mark.parametrize("good", GOOD)
def test_other_names_are_left_alone(good: str) -> None:
    assert unprintable("a name", good) == ""
    assert escaped(good) == good


@pytest.mark.real
@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_it_is_refused_where_it_is_given(tmp_path: Path, bad: str) -> None:
    """Queues, exchanges, policies, nodes and keys; also by the node, whatever a client has sent."""
    name = f"orders{bad}eu"
    with Node("a", path=tmp_path / "a") as node:
        node.wait_ready(30)
        refused: list[Callable[[], object]] = [
            lambda: node.queue(name),
            lambda: node.queue("q", dead_letter_queue=name),
            lambda: node.exchange(name, "topic"),
            lambda: node.exchange("news", "topic", alternate=name),
            lambda: node.set_policy(name, "^q", {"max-length": 1}),
            lambda: Node(name, path=tmp_path / "b"),
            lambda: Node("b", path=tmp_path / "b", peers={"b": ENDPOINT, name: "tcp://[::1]:2"}),
            lambda: Key(name, new_key_pair()[0], "client"),  # type: ignore[arg-type]
        ]
        for call in refused:
            with pytest.raises(MirrorQError, match=rf"U\+{ord(bad[0]):04X}"):
                call()
        assert node.queues() == []
    assert not (tmp_path / "b").exists()
    assert "U+" in declaration_error(name, False, False)
    assert "U+" in command_error(DeclareExchange(name, "topic"))
    assert "U+" in command_error(SetPolicy(name, "{}"))
    assert command_error(DeclareExchange("news", "topic")) == ""


def test_the_command_line_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """In tables, lines and errors: a name is one cell of one line."""
    bad = "orders\x1b]0;title\x07\u202e\tx\ny"
    connecting.print_rows(("queue", "nodes"), [[bad, [bad, "a"]]], is_json=False)
    connecting.echo(f"deleted: {bad}")
    connecting.Failed(f"no queue is named {bad}").show()
    told = capsys.readouterr()
    lines = told.out.split("\n")
    assert lines[1] == "\t".join([escaped(bad), f"{escaped(bad)},a"])
    assert not [one for one in told.out + told.err if not one.isprintable() and one not in "\n\t"]


def test_the_log_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    """Also within an error; numbers stay what they are."""
    with caplog.at_level(logging.WARNING, "mirrorq"):
        logging.getLogger("mirrorq").warning(
            "refused %s: %s, %d", "a\nb", ConfigError("not \x1b[2J"), 3
        )
    assert caplog.messages == ["refused a\\nb: not \\x1b[2J, 3"]


@pytest.mark.parametrize("other", ["tcp://127.0.0.1:7401", "ipc:///tmp/a.sock"])
def test_two_nodes_at_one_endpoint(other: str) -> None:
    """In peers: one of them is somewhere else, and the error names both."""

    def given(peers: dict[str, str]) -> NodeEndpoints:
        return NodeEndpoints("a", peers, None, None, insecure=False, security=None)

    given({"a": "tcp://127.0.0.1:7400", "b": other})
    with pytest.raises(ConfigError, match=r"nodes 'b' and 'c' have the same endpoint"):
        given({"a": "tcp://127.0.0.1:7400", "b": other, "c": other})
