"""Keys of a small cluster, and nodes and clients that are closed at the end."""

from __future__ import annotations

from pathlib import Path

from mirrorq.security.key_files import add_key, secret_path, write_secret
from mirrorq.security.roles import KEYS_NAME, Key, Role
from mirrorq.security.settings import Security
from mirrorq.transport.curve import new_key_pair


def make(directory: Path, name: str, role: str, **patterns: list[str]) -> Key:
    """What `mirrorq key new` does."""
    directory.mkdir(exist_ok=True)
    public, secret = new_key_pair()
    key = Key(name, public, Role(role), **{kind: tuple(given) for kind, given in patterns.items()})
    write_secret(secret_path(directory, name), secret)
    add_key(directory / KEYS_NAME, key)
    return key


class KeyRing:
    """A directory with keys of peers a, b, c, of an admin, and of clients by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for node in "abc":
            make(directory, node, "peer")
        make(directory, "admin", "admin")

    def client(self, name: str, **patterns: list[str]) -> Security:
        make(self.directory, name, "client", **patterns)
        return self.of(name)

    def of(self, name: str) -> Security:
        return Security.load(self.directory, name)

    def stranger(self) -> Security:
        """Knows the nodes' keys, and is not listed."""
        return Security(new_key_pair()[1], self.of("a").keys)
