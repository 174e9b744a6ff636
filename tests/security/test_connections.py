"""Who gets a connection: nodes and clients with keys, without, and with wrong ones."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from tests.kit import free_endpoint, peers_of, until
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing, make

from mirrorq import MirroredQueue, clock
from mirrorq.client.client import connect
from mirrorq.config import Config
from mirrorq.errors import AuthenticationError, ConfigError, NoQuorum
from mirrorq.node.authority import Authority
from mirrorq.node.node import Node
from mirrorq.security.settings import Security
from mirrorq.transport.curve import new_key_pair
from mirrorq.transport.inbound import (
    ClientMessage,
    Connected,
    Garbage,
    HandshakeRefused,
    PeerMessage,
)
from mirrorq.transport.transport import Transport

pytestmark = pytest.mark.real

TIMEOUT_S = 2.0
"""For a connection that cannot come: twenty times what the refusal takes."""

OpenNode = Callable[..., Node]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[OpenNode]:
    """Makes nodes that are closed at the end."""
    with ExitStack() as stack:

        def open_node(name: str, **given: object) -> Node:
            made = Node(name, path=tmp_path / f"store-{name}", **given)  # type: ignore[arg-type]
            return stack.enter_context(made)

        yield open_node


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Node]:
    """A node without keys."""
    with Node("a", path=tmp_path / "plain", listen="tcp://127.0.0.1:0") as node:
        node.wait_ready(30)
        yield node


# --- Listening ----------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:*", "tcp://*:*"])
def test_strangers_are_listened_to_with_keys_only(
    tmp_path: Path, ring: KeyRing, listen: str
) -> None:
    """HandshakeRefused without; with keys, or when the owner insists, it is done."""
    with pytest.raises(ConfigError, match="without security"):
        Node("a", path=tmp_path / "a", listen=listen)
    assert not (tmp_path / "a").exists()
    Node("a", path=tmp_path / "a", listen=listen, insecure=True).close()
    with Node("a", path=tmp_path / "a", listen=listen, security=ring.of("a")) as node:
        port = node.listening.rpartition(":")[2]
        with connect(f"tcp://127.0.0.1:{port}", security=ring.of("admin")) as client:
            assert client.entry_node == "a"


def test_other_machines_are_connected_to_with_keys_only(ring: KeyRing) -> None:
    with pytest.raises(ConfigError, match="without security"):
        connect("tcp://192.0.2.1:7400")
    with pytest.raises(NoQuorum):
        connect("tcp://192.0.2.1:7400", security=ring.of("admin"), timeout=0.1)


@pytest.mark.parametrize("given", ["keys", b"x", 7, {}])
def test_what_is_no_security_is_refused(tmp_path: Path, given: object) -> None:
    """And not shown: it may be a secret."""
    for opening in (
        lambda: Node("a", path=tmp_path / "a", security=given),  # type: ignore[arg-type]
        lambda: MirroredQueue("q", path=tmp_path / "a", security=given),  # type: ignore[arg-type]
        lambda: connect("tcp://127.0.0.1:1", security=given),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=r"takes a mirrorq\.Security") as caught:
            opening()
        assert repr(given) not in str(caught.value)


def test_a_node_needs_its_own_key_and_those_of_its_peers(tmp_path: Path, ring: KeyRing) -> None:
    """Told at start, before anything is made."""
    with pytest.raises(ConfigError, match="secret key of node 'a' is not the one"):
        Node("a", path=tmp_path / "a", security=ring.of("b"))
    peers = peers_of(("a", "zebra"))
    with pytest.raises(ConfigError, match="named 'zebra'"):
        Node("a", path=tmp_path / "a", peers=peers, security=ring.of("a"))
    with pytest.raises(ConfigError, match="name no node"):
        connect("tcp://127.0.0.1:1", security=Security(new_key_pair()[1], ()))
    assert not (tmp_path / "a").exists()


# --- Clients ------------------------------------------------------------------------------


def test_a_client_with_a_listed_key_works(
    node: Node, ring: KeyRing, connecting: Connecting
) -> None:
    """Everything travels encrypted and works as ever."""
    queue = connecting(node.endpoint, ring.of("admin")).queue("orders")
    assert queue.put_many([b"one", b"two", bytes(200_000)]).result(30) == range(1, 4)
    messages = queue.get_many(3, timeout=30)
    assert [len(message.body) for message in messages] == [3, 3, 200_000]
    queue.ack_many(messages).result(30)


def test_a_key_that_is_not_listed_is_refused_at_once(
    node: Node, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    """With the endpoint and the public key, on both sides; long before the timeout."""
    stranger = ring.stranger()
    with pytest.raises(AuthenticationError) as caught:
        connect(node.endpoint, security=stranger, timeout=None)
    text = str(caught.value)
    assert text.startswith(f"key refused by {node.endpoint}")
    assert stranger.public_key in text
    assert stranger.secret_key not in text
    until(lambda: stranger.public_key in caplog.text)
    assert stranger.secret_key not in caplog.text


def test_a_client_without_keys_is_told_that_it_needs_some(node: Node) -> None:
    """Not after the timeout of nobody's answer, but when the endpoint has said so."""
    with pytest.raises(AuthenticationError, match="requires keys"):
        connect(node.endpoint, timeout=None)


def test_a_client_with_keys_does_not_trust_a_node_without(plain: Node, ring: KeyRing) -> None:
    with pytest.raises(AuthenticationError, match="has no keys"):
        connect(plain.endpoint, security=ring.of("admin"), timeout=None)


def test_a_node_with_another_key_is_not_trusted(node: Node, ring: KeyRing) -> None:
    """The client knows b and c only: whoever answers must be one of them."""
    keys = tuple(key for key in ring.of("admin").keys if key.name != "a")
    security = Security(ring.of("admin").secret_key, keys)
    with pytest.raises(AuthenticationError, match="has none of the 2 nodes' keys"):
        connect(node.endpoint, security=security, timeout=TIMEOUT_S)


def test_a_node_with_keys_that_stands_still_is_no_question_of_keys(ring: KeyRing) -> None:
    """Its sockets answer the greeting, and nobody decides on the key."""
    with zmq.Context() as context, context.socket(zmq.REP) as zap:
        zap.bind("inproc://zeromq.zap.01")
        with context.socket(zmq.ROUTER) as still:
            still.curve_server = True
            still.curve_secretkey = ring.of("a").secret_key.encode()
            still.curve_publickey = ring.of("a").public_key.encode()
            still.zap_domain = b"nodes"
            port = still.bind_to_random_port("tcp://127.0.0.1")
            config = Config(failure_ms=500)
            with pytest.raises(NoQuorum):
                connect(
                    f"tcp://127.0.0.1:{port}",
                    security=ring.of("admin"),
                    config=config,
                    timeout=TIMEOUT_S,
                )


def test_it_goes_on_to_a_node_that_knows_its_key(
    node: Node, plain: Node, ring: KeyRing, connecting: Connecting
) -> None:
    """One endpoint that refuses is no reason to give up."""
    client = connecting(f"{plain.endpoint},{node.endpoint}", ring.of("admin"))
    assert client.endpoints[0] == plain.endpoint
    assert client.entry_node == "a"
    client.queue("orders").put(b"x").result(30)


def test_a_pickled_handle_connects_with_the_same_keys(
    node: Node, ring: KeyRing, connecting: Connecting
) -> None:
    """It names the file, so the secret does not travel."""
    queue = connecting(node.endpoint, ring.of("admin")).queue("orders")
    pickled = pickle.dumps(queue)
    assert ring.of("admin").secret_key.encode() not in pickled
    with pickle.loads(pickled) as copied:
        assert copied.put(b"from the copy").result(30) == 1


def test_a_key_counts_from_when_it_is_listed(
    node: Node, ring: KeyRing, connecting: Connecting
) -> None:
    """Without a restart of the node."""
    with pytest.raises(AuthenticationError):
        connect(node.endpoint, security=ring.stranger(), timeout=None)
    late = ring.client("late", configure=["*"])

    def is_let_in() -> bool:
        try:
            connecting(node.endpoint, late)
        except AuthenticationError:
            return False
        return True

    until(is_let_in)


# --- Nodes --------------------------------------------------------------------------------


def test_nodes_with_keys_form_a_cluster(opening: OpenNode, ring: KeyRing) -> None:
    """Replication, confirms and a client, all with keys."""
    peers = peers_of("abc")
    nodes = [opening(name, peers=peers, security=ring.of(name)) for name in peers]
    queue = nodes[0].queue("orders")
    assert queue.put_many([b"x"] * 100).result(30) == range(1, 101)
    until(lambda: len(queue.status().synchronised_mirrors) == 2)
    with connect(list(peers.values()), security=ring.of("admin")) as client:
        assert client.queue("orders").get(timeout=30).body == b"x"


def test_a_node_joins_through_an_endpoint_whose_key_is_not_known(
    opening: OpenNode, ring: KeyRing
) -> None:
    """It tries the nodes' keys; only a node of the cluster is believed."""
    first = opening("c", listen=free_endpoint(), security=ring.of("c"))
    first.wait_ready(30)
    joiner = opening("a", join=first.endpoint, security=ring.of("a"))
    joiner.wait_ready(30)
    until(lambda: [node.name for node in joiner.nodes() if node.alive] == ["a", "c"])


def test_a_node_without_keys_stays_out(
    opening: OpenNode, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither side talks to the other, and both logs say so."""
    peers = peers_of("ab")
    node = opening("a", peers=peers, security=ring.of("a"))
    plain = opening("b", peers=peers)
    until(lambda: "does it require keys?" in caplog.text)
    until(lambda: "it has another key, or none" in caplog.text)
    for each, why in ((node, "it has another key, or none"), (plain, "does it require keys?")):
        with pytest.raises(NoQuorum) as raised:
            each.wait_ready(0.2)
        assert why in str(raised.value)


class Wire:
    """Two transports with keys, polled together."""

    def __init__(self, ring: KeyRing) -> None:
        self.config = Config()
        self.transports: list[Transport] = []
        self.inbound: list[object] = []
        self.ring = ring

    def transport(self, node: str, security: Security) -> Transport:
        made = Transport(node, 1, "tcp://127.0.0.1:0", self.config, Authority(security))
        self.transports.append(made)
        return made

    def has(self, text: str) -> bool:
        for each in self.transports:
            self.inbound += each.poll(10)
        return any(re.search(text, repr(each)) for each in self.inbound)


@pytest.fixture
def wire(ring: KeyRing) -> Iterator[Wire]:
    wire = Wire(ring)
    yield wire
    for each in wire.transports:
        each.close()


def test_nobody_poses_as_another_node(wire: Wire, ring: KeyRing) -> None:
    """b's key is listed and gets a connection, but what is said in a's name is dropped."""
    target = wire.transport("c", ring.of("c"))
    impostor = wire.transport("a", ring.of("b"))
    impostor.connect_peer("c", target.endpoint)
    until(lambda: wire.has("Connected"))
    assert impostor.send("c", 0, [b"I am a"])
    until(lambda: wire.has("calls itself node a, and its key .* is another's"))
    assert not [each for each in wire.inbound if isinstance(each, PeerMessage)]
    honest = wire.transport("b", ring.of("b"))
    honest.connect_peer("c", target.endpoint)
    until(lambda: wire.has("Connected"))
    until(lambda: honest.send("c", 0, [b"I am b"]) or wire.has("nothing"))
    until(lambda: wire.has("I am b"))
    assert PeerMessage("b", 1, 0, [b"I am b"]) in wire.inbound


def test_a_clients_key_makes_no_node(wire: Wire, ring: KeyRing) -> None:
    """An admin may do everything but be a node, whatever it calls itself."""
    target = wire.transport("c", ring.of("c"))
    for name in ("admin", "a"):
        posing = wire.transport(name, ring.of("admin"))
        posing.connect_peer("c", target.endpoint)
        until(lambda posing=posing: posing.send("c", 1, [b"x"]) or wire.has("nothing"))
        until(lambda name=name: wire.has(f"Garbage.*calls itself node {name}"))
    assert not [each for each in wire.inbound if isinstance(each, PeerMessage | ClientMessage)]


def test_a_listener_with_another_key_is_no_peer(wire: Wire, ring: KeyRing) -> None:
    """Whoever has taken over b's address needs b's key to be talked to."""
    ours = wire.transport("a", ring.of("a"))
    thief = wire.transport("b", ring.of("c"))
    ours.connect_peer("b", thief.endpoint)
    until(lambda: wire.has("HandshakeRefused.*it has another key, or none"))
    assert not ours.send("b", 0, [b"secret"])
    assert not [each for each in wire.inbound if isinstance(each, Connected | Garbage)]


def test_a_peer_is_reached_as_soon_as_its_key_is_listed(wire: Wire, ring: KeyRing) -> None:
    """And a key that is listed anew replaces the old one."""
    ours = wire.transport("a", ring.of("a"))
    ours.connect_peer("late", free_endpoint())
    until(lambda: wire.has("HandshakeRefused.*no key with the role peer is named late"))
    make(ring.directory, "late", "peer")
    late = wire.transport("late", ring.of("late"))
    ours.connect_peer("late", late.endpoint)
    until(lambda: wire.has("Connected.*late"))
    assert ours.send("late", 0, [b"welcome"])
    until(lambda: wire.has("welcome"))


def test_a_node_is_let_in_as_soon_as_its_key_is_listed(wire: Wire, ring: KeyRing) -> None:
    """It came before the other had read the list, as nodes do that start when keys are copied."""
    late = make(ring.directory, "late", "peer")
    keys = ring.directory / "keys.toml"
    whole = keys.read_text()
    newcomer = wire.transport("late", ring.of("late"))
    keys.write_text(whole.replace(late.public_key, new_key_pair()[0]))
    target = wire.transport("c", ring.of("c"))
    newcomer.connect_peer("c", target.endpoint)
    until(lambda: wire.has("HandshakeRefused.*does not know this node's key"))
    keys.write_text(whole)
    until(lambda: wire.has("Connected.*c"))
    assert newcomer.send("c", 0, [b"hello"])
    until(lambda: wire.has("hello"))


def test_a_node_that_gets_keys_later_is_reached(wire: Wire, ring: KeyRing) -> None:
    """It had none at first: the handshake with it failed."""
    endpoint = free_endpoint()
    plain = Transport("c", 1, endpoint, wire.config)
    wire.transports.append(plain)
    ours = wire.transport("a", ring.of("a"))
    ours.connect_peer("c", endpoint)
    until(lambda: wire.has("HandshakeRefused.*it has another key, or none"))
    wire.transports.remove(plain)
    plain.close()
    wire.transports.append(Transport("c", 2, endpoint, wire.config, Authority(ring.of("c"))))
    until(lambda: wire.has("Connected.*c"))


def test_a_key_that_is_taken_off_the_list_is_no_nodes_any_more(wire: Wire, ring: KeyRing) -> None:
    """On connections that stand, too."""
    target = wire.transport("c", ring.of("c"))
    other = wire.transport("b", ring.of("b"))
    other.connect_peer("c", target.endpoint)
    until(lambda: other.send("c", 0, [b"before"]) or wire.has("nothing"))
    until(lambda: wire.has("before"))
    listed = ring.directory / "keys.toml"
    text = listed.read_text()
    other_key = ring.of("b").public_key
    replaced = text.replace(other_key, new_key_pair()[0])
    # As an editor does it: another file takes the name.
    made = ring.directory / "new"
    made.write_text(replaced)
    made.chmod(0o644)
    os.replace(made, listed)
    until(lambda: other.send("c", 0, [b"after"]) and wire.has("Garbage.*is another's"))


def test_a_list_that_is_broken_later_changes_nothing(
    wire: Wire, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    """The node goes on with what it knew, and says so once."""
    b = ring.of("b")
    target = wire.transport("c", ring.of("c"))
    (ring.directory / "keys.toml").write_text("[broken")
    until(lambda: wire.has("nothing") or "the keys stay as they were" in caplog.text)
    other = wire.transport("b", b)
    other.connect_peer("c", target.endpoint)
    until(lambda: other.send("c", 0, [b"still known"]) or wire.has("nothing"))
    until(lambda: wire.has("still known"))
    assert caplog.text.count("the keys stay as they were") == 1


def test_a_list_that_is_allowed_again_is_read(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chmod, as the log advises, changes neither content nor time of the file."""
    listed, now_ms = ring.directory / "keys.toml", [0]
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms[0])
    authority = Authority(ring.of("a"))
    listed.write_text(listed.read_text().split('["admin"]')[0])
    for mode, count in ((0o664, 4), (0o644, 3)):
        listed.chmod(mode)
        now_ms[0] += 10_000
        authority.refresh()
        assert len(authority._by_key) == count


def test_refusals_name_no_secret(wire: Wire, ring: KeyRing) -> None:
    """What the transport reports holds public keys only."""
    target = wire.transport("c", ring.of("c"))
    stranger = ring.stranger()
    posing = wire.transport("a", stranger)
    posing.connect_peer("c", target.endpoint)
    until(lambda: wire.has("its key .* is not listed") and wire.has("does not know this node's"))
    assert any(isinstance(each, HandshakeRefused) and each.by_key for each in wire.inbound)
    assert stranger.secret_key not in repr(wire.inbound)
