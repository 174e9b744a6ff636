"""The endpoints to which a node keeps connections, and the names of the processes there. Pure.

A node of the configuration is reached at its configured endpoint until it reports a new one: an
endpoint other than the node had in the cluster before. Other nodes are reached where they or the
catalog say. A process without a usable name goes by "?" and its endpoint. Its name is unknown (a
joining node was given the endpoint), or another node has the same name.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from mirrorq.protocol.control import Unwelcome

STRANGERS_MAX = 64
"""Maximum number of processes outside the cluster to which a node talks; the rest wait."""
MARK = "?"
"""First character of the key of a process that has no node name."""


@define
class _Stranger:
    word: Unwelcome
    """The refusal that is sent to the process."""
    heard_ms: int


class Addresses:
    """The connections that a node wants, as a whole; never the steps to get there.

    A node that replays the catalog sees nodes come, be forgotten and come again in one step. The
    driver acts on the difference between the wanted connections and the open connections.
    """

    def __init__(
        self, own: str, endpoint: str, static: Mapping[str, str], seeds: tuple[str, ...]
    ) -> None:
        self._own = own
        self._own_endpoint = endpoint
        self._static = {name: at for name, at in static.items() if name != own}
        self._known = dict(self._static)
        self._said: dict[str, str] = {}
        """Configured node -> endpoint first named by the node or the catalog, as others see it."""
        self._listed: dict[str, str] = {}
        """Nodes of the catalog, with their endpoints there."""
        self._strangers: dict[str, _Stranger] = {}
        self.seeds = {MARK + seed: seed for seed in seeds if seed != endpoint}
        """Key in `wanted` -> endpoint through which to join."""
        self.has_changed = True

    def wanted(self) -> dict[str, str]:
        """Return the endpoints of all connections to keep, by node name or by "?" and endpoint."""
        strangers = {key: key[len(MARK) :] for key in self._strangers}
        return {**self._known, **self.seeds, **strangers}

    def take_change(self) -> dict[str, str] | None:
        """Return the wanted connections if they may have changed since the last call; else None."""
        if not self.has_changed:
            return None
        self.has_changed = False
        return self.wanted()

    # --- Nodes ----------------------------------------------------------------------------

    def is_static(self, name: str) -> bool:
        """Return true if the configuration names the node."""
        return name in self._static

    def endpoint_of(self, name: str) -> str:
        """Return the endpoint at which a node is looked for; "": not known."""
        return self._own_endpoint if name == self._own else self._known.get(name, "")

    def learn(self, name: str, endpoint: str) -> bool:
        """Note a node's endpoint. Return true if the node is connected to, there or elsewhere."""
        if name == self._own or name[:1] == MARK or not endpoint:
            return name in self._known
        if name in self._static and self._said.setdefault(name, endpoint) == endpoint:
            return True
        if self._known.get(name) == endpoint:
            return True
        others = len(self._known) - len(self._static) - len(self._listed)
        if name not in self._known and name not in self._listed and others >= STRANGERS_MAX:
            return False
        if name in self._static:
            self._said[name] = endpoint
        self._known[name] = endpoint
        self.has_changed = True
        return True

    def update_nodes(self, nodes: Mapping[str, str]) -> tuple[str, ...]:
        """Take the catalog's nodes: name -> endpoint. Return the nodes that have left."""
        gone = tuple(name for name in self._listed if name not in nodes)
        before, self._listed = self._listed, dict(nodes)
        for name, endpoint in nodes.items():
            # The catalog's endpoint may be older than the node's own last report.
            if before.get(name) != endpoint:
                self.learn(name, endpoint)
        for name in gone:
            self.forget(name)
        return gone

    def is_needed(self, name: str) -> bool:
        """Return true if connections to a silent node are still needed."""
        return name in self._static or name in self._listed

    def forget(self, name: str) -> None:
        """Keep no more connections to a node, unless the configuration names it."""
        if name not in self._static and self._known.pop(name, None) is not None:
            self.has_changed = True

    # --- Strangers ------------------------------------------------------------------------

    def tell(self, now_ms: int, endpoint: str, word: Unwelcome) -> str:
        """Have a refusal sent to a process. Return its key in `wanted`; "": no refusal is sent."""
        key = MARK + endpoint
        if not endpoint or endpoint == self._own_endpoint or key in self.seeds:
            return ""
        if key not in self._strangers:
            if len(self._strangers) >= STRANGERS_MAX:
                return ""
            self.has_changed = True
        self._strangers[key] = _Stranger(word, now_ms)
        return key

    def word_for(self, key: str) -> Unwelcome | None:
        """Return the refusal to send to a stranger; None: there is none."""
        stranger = self._strangers.get(key)
        return None if stranger is None else stranger.word

    def end_silent(self, before_ms: int) -> None:
        """Drop strangers that were last heard before a time."""
        for key, stranger in list(self._strangers.items()):
            if stranger.heard_ms < before_ms:
                del self._strangers[key]
                self.has_changed = True

    def end_seeds(self) -> None:
        """Forget the endpoints to join through: the node has joined."""
        self.seeds = {}
        self.has_changed = True
