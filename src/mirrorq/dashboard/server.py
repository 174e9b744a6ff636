"""Serves the dashboard of one cluster over HTTP, on threads of its own."""

from __future__ import annotations

import socket
import threading

from mirrorq.api.closing import Closing
from mirrorq.errors import ConfigError

try:
    import uvicorn

    from mirrorq.dashboard.observer import Observer
    from mirrorq.dashboard.site import make_site
except ImportError as error:
    raise ImportError(
        "the dashboard needs starlette and uvicorn: pip install 'mirrorq[dashboard]'"
    ) from error

from mirrorq.api.access import Access
from mirrorq.security.settings import is_host_loopback
from mirrorq.transport.endpoint import listening, split_address, why_not

ADDRESS = "127.0.0.1:7480"
CONNECTIONS_MAX = 256
REQUEST_BYTES_MAX = 16 * 1024
BACKLOG = 64
KEEP_ALIVE_S = 20
END_S = 2.0
"""A node that ends has 5 s in all."""
ADMIN_KEY_CHARS_MIN = 16


class Dashboard(Closing):
    """One page at one address. Starts at once; `close` ends the server.

    Args:
        cluster: a `Node` or a `Client`; the caller closes the cluster, after the dashboard.
        address: `host:port`, `:port` or `port`; without a host, loopback; port 0 takes a free one.
        admin_key: allows a user to look at messages and end them, pause and synchronise queues,
            and move masters; at least 16 characters. None: the page is read-only.
        insecure: allow other addresses than loopback, by plain HTTP.

    Raises:
        ConfigError: the address is malformed, taken or not allowed; the key is too short.
    """

    def __init__(
        self,
        cluster: Access,
        address: str = ADDRESS,
        *,
        admin_key: str | None = None,
        insecure: bool = False,
    ) -> None:
        if admin_key is not None and len(admin_key) < ADMIN_KEY_CHARS_MIN:
            raise ConfigError(
                f"an admin key of {len(admin_key)} characters can be guessed: give at least "
                f"{ADMIN_KEY_CHARS_MIN}"
            )
        self._socket = _listening_at(address, insecure=insecure)
        host, _ = split_address(address, ADDRESS)
        bound = self._socket.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.url = f"http://{shown}:{bound[1]}/"
        """URL of the page."""
        self._observer = Observer(cluster)  # type: ignore[arg-type]
        site = make_site(self._observer, cluster, admin_key, (host.lower(),))
        config = uvicorn.Config(
            site,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            loop="asyncio",
            http="h11",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="mirrorq-site", daemon=True)
        self._observer.start()
        self._thread.start()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """End the server within seconds; open connections are cut off. May be repeated."""
        self._server.should_exit = True
        self._thread.join(END_S)
        self._observer.stop()
        self._socket.close()


def check_address(address: str, *, insecure: bool) -> None:
    """Check that a dashboard can be served at an address now.

    Raises:
        ConfigError: the address is malformed, taken or not allowed.
    """
    _listening_at(address, insecure=insecure).close()


def _listening_at(address: str, *, insecure: bool) -> socket.socket:
    host, port = split_address(address, ADDRESS)
    if not insecure and not is_host_loopback(host):
        raise ConfigError(
            f"a dashboard at {address} could be read by other machines, by plain HTTP: listen "
            "on loopback, or allow it with insecure=True (--open)"
        )
    try:
        return listening(host, port, BACKLOG)
    except OSError as error:
        text = f"cannot serve a dashboard at {host}:{port}: {why_not(error)}"
        raise ConfigError(text) from error
