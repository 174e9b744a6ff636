"""To whom a node keeps connections, and under what name. Pure.

Nodes that the configuration names are reached where it says, until they say that they have moved:
an endpoint other than they had in this cluster before. Others are reached where they or the catalog
say. A process whose name is not known (an endpoint that a joining node was given) or cannot be
used (another's who has the same name) goes by "?" and its endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from mirrorq.protocol.control import Unwelcome

STRANGERS_MAX = 64
"""Processes that are no nodes of the cluster and that this node talks to; others wait."""
MARK = "?"
"""First character of what is no node's name."""


@define
class _Stranger:
    word: Unwelcome
    """What it is told."""
    heard_ms: int


class Addresses:
    """The connections that a node wants: the whole of them, never what has to be done for it.

    A node that replays the catalog sees others come, be forgotten and come again in one step; what
    it does about that is the difference between what it wants in the end and what it has.
    """

    def __init__(
        self, own: str, endpoint: str, static: Mapping[str, str], seeds: tuple[str, ...]
    ) -> None:
        self._own = own
        self._own_endpoint = endpoint
        self._static = {name: at for name, at in static.items() if name != own}
        self._known = dict(self._static)
        self._said: dict[str, str] = {}
        """Named node -> where it, or the catalog, said first that it is: as others see it."""
        self._listed: dict[str, str] = {}
        """Nodes of the catalog, with the endpoints that it has."""
        self._strangers: dict[str, _Stranger] = {}
        self.seeds = {MARK + seed: seed for seed in seeds if seed != endpoint}
        """Name in `wanted` -> endpoint through which to join."""
        self.has_changed = True

    def wanted(self) -> dict[str, str]:
        """Everybody to keep connections to, and where: by the name of a node, or "?" and its
        endpoint."""
        strangers = {key: key[len(MARK) :] for key in self._strangers}
        return {**self._known, **self.seeds, **strangers}

    def take_change(self) -> dict[str, str] | None:
        """What is wanted, if that may be something else than the last time; None: it is not."""
        if not self.has_changed:
            return None
        self.has_changed = False
        return self.wanted()

    # --- Nodes ----------------------------------------------------------------------------

    def is_static(self, name: str) -> bool:
        """Whether the configuration names this node."""
        return name in self._static

    def endpoint_of(self, name: str) -> str:
        """Where this node is looked for, "" when that is not known."""
        return self._own_endpoint if name == self._own else self._known.get(name, "")

    def learn(self, name: str, endpoint: str) -> bool:
        """A node is at this endpoint. Returns whether it is connected to, there or elsewhere."""
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

    def list_nodes(self, nodes: Mapping[str, str]) -> tuple[str, ...]:
        """The catalog has these nodes now: name -> endpoint. Returns who is no more in it."""
        gone = tuple(name for name in self._listed if name not in nodes)
        before, self._listed = self._listed, dict(nodes)
        for name, endpoint in nodes.items():
            # What it said before may be older than what the node itself has said since.
            if before.get(name) != endpoint:
                self.learn(name, endpoint)
        for name in gone:
            self.forget(name)
        return gone

    def is_needed(self, name: str) -> bool:
        """Whether a node that is silent is still one to be connected to."""
        return name in self._static or name in self._listed

    def forget(self, name: str) -> None:
        """No more connections to this node, unless the configuration names it."""
        if name not in self._static and self._known.pop(name, None) is not None:
            self.has_changed = True

    # --- Strangers ------------------------------------------------------------------------

    def tell(self, now_ms: int, endpoint: str, word: Unwelcome) -> str:
        """Say something to the process there. Returns its name in `wanted`, "" for none."""
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
        """What this stranger is told, None for nothing."""
        stranger = self._strangers.get(key)
        return None if stranger is None else stranger.word

    def end_silent(self, before_ms: int) -> None:
        """Leave strangers that were last heard before."""
        for key, stranger in list(self._strangers.items()):
            if stranger.heard_ms < before_ms:
                del self._strangers[key]
                self.has_changed = True

    def end_seeds(self) -> None:
        """This node has joined."""
        self.seeds = {}
        self.has_changed = True
