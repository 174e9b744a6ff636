"""Endpoints: `tcp://host:port` and `ipc://path`, checked before zmq sees them."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat

from attrs import frozen

from mirrorq.errors import ConfigError
from mirrorq.system import IPC_PATH_BYTES_MAX


# Addresses of served pages: `host:port` as a user writes.
def split_address(address: str, example: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `port`; without a host, loopback.

    Args:
        example: a valid address, for the error.

    Raises:
        ConfigError: the text is no address.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address: give host:port, as {example}")
    return host.strip("[]") or "127.0.0.1", int(port)


def listening(host: str, port: int, backlog: int = 1) -> socket.socket:
    """Return a socket listening on the address.

    Raises:
        OSError: the socket cannot listen.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made


def absolute(endpoint: str) -> str:
    """Return an endpoint that means the same in every working directory: a socket file's by its
    absolute path."""
    scheme, _, path = endpoint.partition("ipc://")
    return endpoint if scheme else f"ipc://{os.path.abspath(path)}"


def lasting(endpoint: str) -> str:
    """Return `absolute`, unless no socket may have so long a path."""
    whole = absolute(endpoint)
    path_bytes = len(os.fsencode(whole)) - len("ipc://")
    return whole if path_bytes <= IPC_PATH_BYTES_MAX else endpoint


def why_not(error: Exception) -> str:
    """Return why nothing is served at an address, with the remedy."""
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return "something listens there already: stop it, or give another port"
    if number == errno.EADDRNOTAVAIL:
        return "this machine has no such address: give one of its own, or 127.0.0.1"
    if number == errno.EACCES:
        return "this user may not listen there: give a port above 1023"
    return str(error)


_TCP = re.compile(
    r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\*|\d{1,5})"
)
_SYNTAX = "write tcp://host:port, tcp://[IPv6 address]:port or ipc:///path"


@frozen
class Endpoint:
    """An endpoint. Either `host` and `port` are set, or `path`."""

    text: str
    """The text as given."""
    host: str = ""
    """Name, IPv4 address, IPv6 address without brackets, or * for every address."""
    port: int = 0
    """0: any free port (listening only)."""
    path: str = ""

    @property
    def is_ipc(self) -> bool:
        return bool(self.path)

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an address, None for a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def zmq_text(self) -> str:
        """The endpoint in libzmq's form."""
        if self.is_ipc:
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port or '*'}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint to connect to.

    Raises:
        ConfigError: not an endpoint, or not fit for connecting.
    """
    endpoint = _parse(text)
    if not endpoint.is_ipc and (endpoint.port == 0 or endpoint.host in ("*", "0.0.0.0", "::")):
        raise ConfigError(
            f"endpoint {text!r} cannot be connected to: name the host and the port that the "
            "node listens on"
        )
    return endpoint


def parse_listen(text: str) -> Endpoint:
    """Parse an endpoint to listen on: port 0 or * takes a free port, host * every address.

    Raises:
        ConfigError: not an endpoint.
    """
    return _parse(text)


def _parse(text: str) -> Endpoint:
    if not isinstance(text, str):
        raise ConfigError(f"endpoint {text!r} is not a string: {_SYNTAX}")
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    match = _TCP.fullmatch(text)
    if match is None:
        raise ConfigError(f"endpoint {text!r} is malformed: {_SYNTAX}")
    port = 0 if match["port"] == "*" else int(match["port"])
    if port > 65535:
        raise ConfigError(f"endpoint {text!r} has port {port}: ports end at 65535")
    endpoint = Endpoint(text, host=match["six"] or match["host"], port=port)
    if match["six"] is not None and endpoint.address is None:
        raise ConfigError(f"endpoint {text!r}: {match['six']!r} is not an IPv6 address")
    return endpoint


def _parse_ipc(text: str) -> Endpoint:
    path = text.removeprefix("ipc://")
    # A leading @ is Linux's abstract namespace: no file, so not on every system.
    if not path or "\0" in path or path[0] in "@*":
        raise ConfigError(f"endpoint {text!r} names no path: write ipc:///path")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"endpoint {text!r} has a path that is not UTF-8, as nodes tell each other their "
            "endpoints: use another folder"
        ) from None
    size = len(os.fsencode(path))
    if size > IPC_PATH_BYTES_MAX:
        raise ConfigError(
            f"endpoint {text!r} has a path of {size} bytes, at most {IPC_PATH_BYTES_MAX} "
            "are possible: use a shorter one"
        )
    return Endpoint(text, path=path)


def resolve_listen(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with its host as an address: libzmq binds to no host name.

    Raises:
        ConfigError: the name has no address, or the path is taken.
    """
    if endpoint.is_ipc:
        _check_free_path(endpoint)
        return endpoint
    if endpoint.host == "*" or endpoint.address is not None:
        return endpoint
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {endpoint.text}: the name {endpoint.host!r} has no address "
            f"({error}); give listen= an address of this machine"
        ) from None
    # IPv4 first, as libzmq connects to IPv4 when a name has both.
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return Endpoint(endpoint.text, host=str(found[0][4][0]), port=endpoint.port)


def _check_free_path(endpoint: Endpoint) -> None:
    """Refuse a taken path: libzmq deletes any file at the path before the bind."""
    try:
        mode = os.stat(endpoint.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint.text}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"cannot listen on {endpoint.text}: there is a file that is not a socket; use another "
            "path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        if probe.connect_ex(endpoint.path) == 0:
            raise endpoint_in_use(endpoint)


def endpoint_in_use(endpoint: Endpoint) -> ConfigError:
    return ConfigError(
        f"cannot listen on {endpoint.text}: another process listens there; stop it, or give "
        "this node another endpoint"
    )
