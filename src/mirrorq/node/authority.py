"""Decides by keys which processes may connect. A change of `keys.toml` counts within a second.

The transport asks at each handshake and at each message from a node. So a key that leaves the list
loses its rights without a restart.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.errors import ConfigError
from mirrorq.node.permissions import Permits
from mirrorq.security.key_files import read_keys
from mirrorq.security.roles import KEYS_NAME, Key, Role
from mirrorq.security.settings import Security
from mirrorq.wire.ops import FrameCodec

if TYPE_CHECKING:
    from mirrorq.cluster.catalog.catalog import Catalog

log = logging.getLogger("mirrorq")

_CODEC = FrameCodec()
LOOK_MS = 1000
"""Interval between two looks at the file, in milliseconds."""


class Authority:
    """The keys of one node. A `transport.Guard`.

    *Threads*: the node thread only.
    """

    def __init__(self, security: Security) -> None:
        self.version = 0
        self.secret_key = security.secret_key
        self._path = Path(security.path).with_name(KEYS_NAME) if security.path else None
        self._looked_ms = clock.now_ms()
        self._stamp = self._stamp_now()
        self._take(security.keys)

    def key(self, public_key: str) -> Key | None:
        """Return the entry of a public key; None: not listed, or no longer."""
        return self._by_key.get(public_key)

    def permits(self, public_key: str, catalog: Catalog) -> Permits | None:
        """Return the rights of a key's owner as a client; None: everything is allowed."""
        known = self._by_key[public_key]
        return Permits(known, catalog, _CODEC) if known.role is Role.CLIENT else None

    def admits(self, public_key: str) -> bool:
        """Return true if the owner of a key may connect."""
        return public_key in self._by_key

    def is_node(self, public_key: str, node: str) -> bool:
        """Return true if the key belongs to the node with the given name."""
        return self._nodes.get(node) == public_key

    def is_any_node(self, public_key: str) -> bool:
        """Return true if the key belongs to any node."""
        known = self._by_key.get(public_key)
        return known is not None and known.role is Role.PEER

    def keys_of(self, node: str) -> tuple[str, ...]:
        """Return a node's key; the keys of all nodes for a process known by endpoint only."""
        known = self._nodes.get(node)
        if known is not None:
            return (known,)
        return tuple(self._nodes.values()) if node.startswith("?") else ()

    def refresh(self) -> None:
        """Read the file again if it has changed. An invalid file changes nothing."""
        now_ms = clock.now_ms()
        if self._path is None or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = read_keys(self._path)
            Security(self.secret_key, keys)
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)
            return
        log.info("read %s: %s keys", self._path, len(keys))
        self._take(keys)

    def _take(self, keys: tuple[Key, ...]) -> None:
        self._by_key = {key.public_key: key for key in keys}
        self._nodes = {key.name: key.public_key for key in keys if key.role is Role.PEER}
        self.version += 1

    def _stamp_now(self) -> tuple[int, ...] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        # A chmod or chown changes the last: a file that was refused may be allowed now.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
