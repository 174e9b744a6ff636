"""Address of a client's cluster in one value: a URL for settings files and the environment.

    mirrorq://host:7400,host2:7400?keys=/etc/shop/keys      nodes, any of which will do
    mirrorq://web@host:7400?keys=/etc/shop/keys             with the key `web` of these keys
    mirrorq:///var/lib/shop?linger=600                      this machine's node: `mirrorq.local`

A URL holds no secret: a key is named, and read from a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from attrs import field, frozen

from mirrorq.config import Config
from mirrorq.errors import ConfigError
from mirrorq.security.settings import Security

Given = str | Sequence[str] | Mapping[str, Any] | None
"""Type of the first argument of `connect`."""
SCHEME = "mirrorq://"
URL = "MIRRORQ_URL"
KEYS = "MIRRORQ_KEYS"
DEFAULT_PORT = "7400"
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return WORDS[str(value).lower()]


def _seconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or math.isnan(number) or number < 0:
        raise ValueError
    return number


def _timeout(value: Any) -> float | None:
    return None if value is None or value == "none" else _seconds(value)


def _config(value: Any) -> Config:
    if isinstance(value, Config):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"config is {value!r}: it must be a Config or a mapping of its limits")
    try:
        return Config(**value)
    except TypeError as error:
        raise ConfigError(str(error)) from None


OPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "keys": (os.fspath, "a directory of keys, or a secret's file"),
    "insecure": (_flag, "1 or 0"),
    "timeout": (_timeout, "seconds, or none"),
    "fail_fast": (_flag, "1 or 0"),
}
"""Options of every address: name -> (reader of the value, description)."""
LOCAL_OPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "linger": (_seconds, "seconds, or inf"),
    "name": (str, "a node's name"),
    "timeout": OPTIONS["timeout"],
}
"""Options of an address of a folder."""


@frozen
class Address:
    """The first argument of `connect`, parsed."""

    endpoints: tuple[str, ...] = ()
    folder: str = ""
    """Folder of a local node; then there are no endpoints."""
    key: str = ""
    """Name of the key, "" for the only key."""
    options: Mapping[str, Any] = field(factory=dict)

    @classmethod
    def of(cls, given: Given) -> Address:
        """Parse an address.

        Raises:
            ConfigError: the value is no address, or has unknown options.
        """
        if given is None:
            given = os.environ.get(URL)
            if not given:
                raise ConfigError(f"no endpoints: name some, or a URL in {URL}")
            try:
                return cls.of(given)
            except ConfigError as error:
                raise ConfigError(f"the environment variable {URL}: {error}") from None
        if isinstance(given, Mapping):
            return cls._of_mapping(given)
        if isinstance(given, str) and given.startswith(SCHEME):
            return cls._of_url(given)
        return cls(_listed(given))

    @classmethod
    def _of_mapping(cls, given: Mapping[str, Any]) -> Address:
        """Settings with a `url`, or a node's `peers`."""
        if "url" not in given:
            return cls(_listed(tuple(given.values())))
        address = cls.of(given["url"])
        more = {name: value for name, value in given.items() if name not in ("url", "config")}
        options = {**address.options, **_read(more, bool(address.folder))}
        if given.get("config") is not None:
            options["config"] = _config(given["config"])
        return cls(address.endpoints, address.folder, address.key, options)

    @classmethod
    def _of_url(cls, text: str) -> Address:
        parts = urlsplit(text)
        pairs = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False))
        user, _, hosts = parts.netloc.rpartition("@")
        if ":" in user:
            raise ConfigError(
                f"{_shown(parts)} has a password, but mirrorq uses keys: name one as "
                f"{SCHEME}key@host, and its directory by ?keys="
            )
        path = unquote(parts.path).rstrip("/")
        if not parts.netloc and path.strip("/"):
            return cls(folder=path, options=_read(pairs, is_local=True))
        if path:
            raise ConfigError(
                f"{_shown(parts)} has the path {path!r}, but mirrorq has no virtual hosts: leave "
                f"it out. {SCHEME}/folder, without a host, is a folder"
            )
        listed = tuple(_endpoint(host) for host in hosts.split(",") if host)
        if not listed:
            raise ConfigError(
                f"{_shown(parts)} names no host: {SCHEME}127.0.0.1 is this machine, and "
                f"{SCHEME}/folder its node in a folder"
            )
        return cls(listed, "", unquote(user), _read(pairs, is_local=False))

    def security(self, given: Security | None) -> Security | None:
        """Return the keys that the address names, or the given keys.

        Raises:
            ConfigError: both are given, or the address has a key's name without a place of keys.
        """
        keys = self.options.get("keys")
        if given is not None:
            if keys or self.key:
                raise ConfigError(
                    "keys are named in the address and given by security= too: give them once"
                )
            return given
        if self.key and not keys:
            keys = os.environ.get(KEYS)
            if not keys:
                raise ConfigError(
                    f"the address names the key {self.key!r} but not its directory: add ?keys=, or "
                    f"set {KEYS}"
                )
        return Security.load(keys, self.key or None) if keys else None


def _listed(given: Any) -> tuple[str, ...]:
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(
            f"endpoints is {given!r}: it must be 'tcp://host:port', several joined by commas, a "
            "list, "
            f"or a URL such as {SCHEME}host:{DEFAULT_PORT}"
        )
    listed = given.split(",") if isinstance(given, str) else given
    return tuple(text.strip() if isinstance(text, str) else text for text in listed)


def _endpoint(host: str) -> str:
    name, colon, digits = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, digits = host, DEFAULT_PORT
    return f"tcp://{'127.0.0.1' if name == 'localhost' else name}:{digits}"


def _read(given: Mapping[str, Any], is_local: bool) -> dict[str, Any]:
    known = LOCAL_OPTIONS if is_local else OPTIONS
    read = {}
    for name, value in given.items():
        if name not in known:
            of = f"{SCHEME}/folder" if is_local else f"{SCHEME}host"
            raise ConfigError(f"{name!r} is not an option of {of}: it has {', '.join(known)}")
        convert, what = known[name]
        try:
            read[name] = convert(value)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{name} is {value!r}: it must be {what}") from None
    return read


def _shown(parts: SplitResult) -> str:
    """Return a URL for an error's text, without parts that may be secret."""
    return f"{parts.scheme}://…{parts.netloc.rpartition('@')[2]}{parts.path}"
