"""Endpoints of a node: to listen, to be reached by other nodes, and to join through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirrorq.api.arguments import check_name, check_text
from mirrorq.client.connect_errors import Inquiry, tried_text
from mirrorq.engine.addresses import MARK
from mirrorq.errors import ConfigError
from mirrorq.protocol.plain import plain
from mirrorq.protocol.validation import NAME_CHARS_MAX
from mirrorq.security.settings import Security, check_endpoints, check_listen
from mirrorq.transport.endpoint import parse_listen
from mirrorq.transport.greeting import silence_of
from mirrorq.transport.inbound import HandshakeRefused

AT_ONCE_S = 0.3
"""A waiting caller gets the answers of the first so many seconds: most answers come at once."""
ANYWHERE = "tcp://127.0.0.1:*"
"""Endpoint of a joining node without a given endpoint: any free port on loopback."""


class NodeEndpoints:
    """The endpoints in a node's arguments. See `mirrorq.Node` for the arguments.

    Raises:
        ConfigError: the arguments contradict each other, or expose the node without keys.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str] | None,
        listen: str | None,
        join: str | Sequence[str] | None,
        *,
        insecure: bool,
        security: Security | None,
    ) -> None:
        _check_names(name, peers)
        self.name: str = plain(name)
        """Name of the node."""
        self.peers: dict[str, str] = {
            plain(peer): plain(endpoint) for peer, endpoint in (peers or {}).items()
        }
        """name -> endpoint, including the node itself."""
        self.joins = _join_endpoints(join, name, peers)
        """Endpoints at which the node asks to join a running cluster."""
        self._given: str | None = listen or self.peers.get(name)
        self._insecure = insecure
        self._security = security
        check_endpoints(self.joins, "join through", insecure=insecure, security=security)
        if security is not None:
            security.check_node(name, (other for other in peers or () if other != name))
        if self._given is not None:
            self._check_listen(self._given)
            self._given = plain(self._given)

    def others(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """Return the other nodes' endpoints by name: as given, else as the store has them."""
        known = self.peers or {one: one for one in self.joins} or recorded
        return {one: endpoint for one, endpoint in known.items() if one != self.name}

    def to_bind(self, recorded: Mapping[str, str]) -> str | None:
        """Return the endpoint to bind; None: do not listen, the node is a cluster of one.

        Args:
            recorded: endpoints of the cluster's nodes in the store, used when no endpoint was
                given.
        """
        if self._given is not None:
            return self._given
        address = recorded.get(self.name)
        if address is None and self.joins:
            address = ANYWHERE
        if address is not None:
            self._check_listen(address)
        return address

    def endpoint(self, bound: str) -> str:
        """Return the endpoint at which other nodes reach the node.

        Raises:
            ConfigError: other nodes cannot reach the endpoint.
        """
        endpoint = self.peers.get(self.name, bound)
        if self.joins and parse_listen(endpoint).host in ("*", "0.0.0.0", "::"):
            raise ConfigError(
                f"node {self.name} listens on {endpoint}, where other nodes cannot reach it: name "
                f"the endpoint at which they reach it, as peers={{{self.name!r}: …}}"
            )
        return endpoint

    def _check_listen(self, address: str) -> None:
        check_listen(address, insecure=self._insecure, security=self._security)


def silent_text(endpoints: Sequence[str], refused: Mapping[str, HandshakeRefused]) -> str:
    """Return endpoints without a running node, with reasons; "": none. Blocks for a moment."""
    silences = Inquiry(silence_of)
    for endpoint in endpoints:
        silences.ask(endpoint)
    silences.wait(AT_ONCE_S)
    silent = [
        one for one in endpoints if silences.answer(one) or silences.silent_s(one) or one in refused
    ]
    return tried_text(silent, refused, silences)


def _check_node_name(what: str, name: str) -> None:
    """Refuse a name that is malformed, or that the command line cannot separate from the
    endpoint."""
    check_name(what, name)
    if len(name) > NAME_CHARS_MAX:
        raise ConfigError(f"{what} has at most {NAME_CHARS_MAX} characters, not {len(name)}")
    if "=" in name:
        raise ConfigError(
            f"{what} is {name!r}: it must not contain =, which ends it in NAME=ENDPOINT"
        )


def _check_names(name: str, peers: Mapping[str, str] | None) -> None:
    _check_node_name("a node's name", name)
    if not name or name[:1] == MARK:
        raise ConfigError(f"a node needs a name that does not begin with {MARK}, not {name!r}")
    if peers is not None and not isinstance(peers, Mapping):
        raise ConfigError(
            f"peers is {peers!r}: it must be a mapping of each node's name to its endpoint, such "
            "as {'a': 'tcp://10.0.0.1:7400'}"
        )
    for peer, endpoint in (peers or {}).items():
        _check_node_name("a peer's name", peer)
        check_text(f"the endpoint of peer {peer!r}", endpoint)
    _refuse_shared_endpoint(peers or {})
    if peers is not None and name not in peers:
        raise ConfigError(
            f"node {name!r} is not among its peers {', '.join(peers)}: name every node of the "
            "cluster with its endpoint, this one included"
        )


def _refuse_shared_endpoint(peers: Mapping[str, str]) -> None:
    """Refuse two nodes with the same endpoint."""
    known: dict[str, str] = {}
    for peer, endpoint in peers.items():
        other = known.setdefault(parse_listen(endpoint).zmq_text, peer)
        if other != peer:
            raise ConfigError(
                f"nodes {other!r} and {peer!r} have the same endpoint {endpoint} in peers: give "
                "each the one at which it is reached"
            )


def split_endpoints(join: str | Sequence[str]) -> tuple[str, ...]:
    """Split endpoints that were given as a list or joined by commas.

    Raises:
        ConfigError: they are something else.
    """
    listed = join.split(",") if isinstance(join, str) else join
    if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
        raise ConfigError(f"join is {join!r}: it must be 'tcp://host:port', or a list of these")
    return tuple(text.strip() for text in listed)


def _join_endpoints(
    join: str | Sequence[str] | None, name: str, peers: Mapping[str, str] | None
) -> tuple[str, ...]:
    if join is None:
        return ()
    others = [other for other in peers or () if other != name]
    if others:
        raise ConfigError(
            f"node {name!r} is given join= and the peers {', '.join(others)}: with join= name "
            "this node only, the cluster tells who the others are"
        )
    texts = split_endpoints(join)
    if not texts:
        raise ConfigError("join= names no endpoint: name one of the cluster's nodes")
    return texts
