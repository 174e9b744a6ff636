"""Files with keys: one secret key each, and `keys.toml`, which names the owners of public keys.

A secret file belongs to one machine: it is made with mode 0600, and refused when other users may
read it. `keys.toml` holds nothing secret and is the same everywhere. A user that can write the file
can grant itself access, so the file is refused when other users may write it. A file's owner is
another user, unless it is root or the process's own; root itself uses the files of any owner, as of
the service's user.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from mirrorq import system
from mirrorq.errors import ConfigError
from mirrorq.security.roles import KEYS_NAME, Key, Role, is_key_text

SECRET_SUFFIX = ".secret"
FILE_BYTES_MAX = 4 * 1024 * 1024
"""Size limit of a file of keys; 20,000 clients fit."""
_PATTERNS = ("write", "read", "configure")
_FIELDS = ("key", "role", *_PATTERNS, "queues")
_HEADER = """\
# Who may connect to this cluster, and to do what. Nothing in here is secret: the same file
# belongs on every node and beside every client's secret key. Nodes notice a change by themselves.
# role: peer (a node, by its name), admin, or client with patterns of queues: write, read,
# configure. In a pattern * stands for any characters; without a pattern nothing is allowed.
# queues: how many there may be that match configure, for a client that makes some.
"""


def secret_path(directory: Path, name: str) -> Path:
    """Return the path of the secret key with a name.

    Raises:
        ConfigError: the name cannot be part of a file's name.
    """
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise ConfigError(f"{name!r} cannot name a file: use a name without / and no . in front")
    return directory / f"{name}{SECRET_SUFFIX}"


def find_secret(directory: Path) -> Path:
    """Return the path of the only secret key in a directory.

    Raises:
        ConfigError: there is none, or more than one.
    """
    try:
        found = sorted(directory.glob(f"*{SECRET_SUFFIX}"))
    except OSError as error:
        raise ConfigError(f"cannot look for keys in {directory}: {error.strerror}") from None
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"there is no secret key in {directory}: mirrorq key new makes one, as NAME"
            f"{SECRET_SUFFIX}"
        )
    listed = ", ".join(path.name for path in found)
    raise ConfigError(f"{directory} has several secret keys ({listed}): name the file of one")


def read_secret(path: Path) -> str:
    """Return the secret key in a file.

    Raises:
        ConfigError: the file is unreadable, is readable by other users, or holds no key.
    """
    text, mode = _read(path)
    if mode & 0o077:
        raise ConfigError(
            f"others may read the secret key in {path} (mode {mode & 0o777:04o}): chmod 600 it, "
            "and make a new key if somebody has"
        )
    # No content of the file is shown: the content is secret even when malformed.
    secret = _parsed(text, path).get("secret_key")
    if not is_key_text(secret):
        raise ConfigError(f"{path} holds no secret_key: mirrorq key new writes such files")
    return str(secret)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys that a `keys.toml` lists.

    Raises:
        ConfigError: the file is unreadable, is writable by other users, or has an error.
    """
    text, mode = _read(path)
    if mode & 0o022:
        raise ConfigError(
            f"others may write {path} (mode {mode & 0o777:04o}) and so let themselves in: "
            "chmod go-w it"
        )
    return tuple(_key(path, name, table) for name, table in _parsed(text, path).items())


def _read(path: Path) -> tuple[str, int]:
    """Return a file's text and mode."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(
                f"{path} has more than {FILE_BYTES_MAX} bytes: it is not a file of keys"
            )
        if os.geteuid() and found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{path} belongs to user {found.st_uid}, who can change it: chown it to root or to "
                f"user {os.geteuid()}, who runs this"
            )
        return data.decode(), stat.S_IMODE(found.st_mode)
    except OSError as error:
        raise ConfigError(
            f"cannot read the keys in {path}: {error.strerror}. `mirrorq key new` makes keys"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not text in UTF-8: mirrorq key new writes such files"
        ) from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _key(path: Path, name: str, table: object) -> Key:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is not a table: write [{name}], then key and role")
    unknown = [field for field in table if field not in _FIELDS]
    if unknown:
        raise ConfigError(f"{path}: {name} has {unknown[0]!r}: known are {', '.join(_FIELDS)}")
    patterns = {field: table.get(field, ()) for field in _PATTERNS}
    key, role, queues = table.get("key", ""), table.get("role", ""), table.get("queues")
    try:
        return Key(name, key, role, **patterns, queues=queues)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_secret(path: Path, secret_key: str) -> None:
    """Make the file of a secret key.

    Raises:
        ConfigError: the file cannot be made, or exists already.
    """
    text = (
        "# A secret key of mirrorq. It stays on this machine; nobody else may read it.\n"
        f"secret_key = {json.dumps(secret_key)}\n"
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _append(descriptor, text, 0)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already: delete it, and its entry in {KEYS_NAME}, to make a new key"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def add_key(path: Path, key: Key) -> None:
    """Add a key to a `keys.toml`, made if absent.

    Raises:
        ConfigError: the file has an error, or lists the name already.
    """
    try:
        with path.open("ab") as file:
            # Two keygens at once must not lose each other's entry.
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if not size:
                os.fchmod(file.fileno(), 0o644)
            if any(known.name == key.name for known in read_keys(path)):
                raise ConfigError(f"{path} lists {key.name!r} already: use another name")
            _append(file.fileno(), ("" if size else _HEADER) + "\n" + _as_text(key), size)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _append(file: int, text: str, size: int) -> None:
    """Append a text to a file of the given size: all of it, or nothing."""
    data = text.encode()
    try:
        while data:
            data = data[os.write(file, data) :]
        system.sync(file)
    except BaseException:
        os.ftruncate(file, size)
        raise


def _as_text(key: Key) -> str:
    lines = [f"[{_quoted(key.name)}]", f"key = {_quoted(key.public_key)}"]
    lines.append(f"role = {_quoted(key.role.value)}")
    if key.role is Role.CLIENT:
        for field in _PATTERNS:
            lines.append(f"{field} = {_quoted(list(getattr(key, field)))}")
    if key.queues is not None:
        lines.append(f"queues = {key.queues}")
    return "\n".join(lines) + "\n"


def _quoted(value: str | list[str]) -> str:
    """Return a value as JSON, as TOML too reads it: no surrogate pairs, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
