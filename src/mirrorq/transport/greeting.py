"""The security mechanism of an endpoint, asked with the first bytes of a handshake.

With keys at only one end, libzmq ends the connection and cannot tell why. Before any use of a
secret both ends name their mechanism in clear text (ZMTP, ZeroMQ RFC 23).
"""

from __future__ import annotations

import contextlib
import socket

from mirrorq.transport.endpoint import Endpoint

CURVE = "CURVE"
NULL = "NULL"
"""Without security."""

NO_HOST = "no such host"
NOTHING = "nothing listens there"
ENDS = "it ends the connection at once: another program, or a node that is stopping"
ABSENT = (NO_HOST, NOTHING)
"""Answers of `silence_of` after which a repeated question can wait."""

_HELLO = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
"""Signature and version 3.0: the other end need not answer longer greetings."""
_MECHANISM = slice(12, 32)


def mechanism_of(endpoint: Endpoint, timeout: float) -> str:
    """Return CURVE, NULL, another mechanism's name, or "" without an answer.

    Args:
        timeout: seconds for each step.

    *Threads*: blocks; not for the thread of a node.
    """
    try:
        with _connected(endpoint, timeout) as connection:
            connection.sendall(_HELLO)
            got = b""
            while len(got) < _MECHANISM.stop:
                more = connection.recv(64)
                if not more:
                    return ""
                got += more
    except (OSError, UnicodeError):
        return ""
    return got[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


def silence_of(endpoint: Endpoint, timeout: float) -> str:
    """Return why no node answers at the endpoint, in a few words; "" if a node may answer.

    Args:
        timeout: seconds for each step.

    *Threads*: blocks; not for the thread of a node.
    """
    is_connected = False
    try:
        with _connected(endpoint, timeout) as connection:
            is_connected = True
            connection.sendall(_HELLO)
            first = connection.recv(1)
    except socket.gaierror:
        return NO_HOST
    except (ConnectionRefusedError, FileNotFoundError):
        return NOTHING
    except TimeoutError:
        if is_connected:
            return "what listens there says nothing: another program, or a node that hangs"
        return f"no answer within {timeout:g} s"
    except ConnectionResetError:
        return ENDS
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    if not first:
        return ENDS
    return "" if first == _HELLO[:1] else "what listens there is not a mirrorq node"


def _connected(endpoint: Endpoint, timeout: float) -> socket.socket:
    if not endpoint.is_ipc:
        return socket.create_connection((endpoint.host, endpoint.port), timeout)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(socket.AF_UNIX))
        made.settimeout(timeout)
        made.connect(endpoint.path)
        stack.pop_all()
    return made
