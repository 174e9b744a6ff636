"""TCP proxies between nodes: each direction of each pair can be let through, held or cut.

One proxy stands for what one node sees of another, so both directions of a pair are two
connections and four flows. TCP loses nothing inside a connection: what is *held* arrives late
or, when the connection ends first, never, which is what a one-way loss looks like to a peer.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

CHUNK_BYTES = 1 << 16


class _Pipe:
    """One connection through a proxy."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far

    def close(self) -> None:
        for each in (self.near, self.far):
            with suppress(OSError):
                each.close()


class Link:
    """What `source` reaches `target` through. `there` flows to the target, `back` from it."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pipes: list[_Pipe] = []
        self._changed = threading.Condition()
        self._is_open = {"there": True, "back": True}
        self._is_cut = False
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *flows: str) -> None:
        """Let nothing through in these directions; connections stay."""
        with self._changed:
            for flow in flows or ("there", "back"):
                self._is_open[flow] = False

    def release(self) -> None:
        """Let everything through again, what was held too."""
        with self._changed:
            self._is_open = {"there": True, "back": True}
            self._is_cut = False
            self._changed.notify_all()

    def cut(self) -> None:
        """End the connections; new ones are ended at once."""
        with self._changed:
            self._is_cut = True
            pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            for each in (pipe.near, pipe.far):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # Closing alone would leave the thread in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            pipe = _Pipe(near, far)
            with self._changed:
                self._pipes.append(pipe)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for flow, source, sink in (("there", near, far), ("back", far, near)):
                threading.Thread(
                    target=self._pump, args=(flow, source, sink, pipe), daemon=True
                ).start()

    def _pump(self, flow: str, source: socket.socket, sink: socket.socket, pipe: _Pipe) -> None:
        with suppress(OSError), selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while True:
                selector.select()
                with self._changed:
                    self._changed.wait_for(lambda: self._is_open[flow] or self._is_closed)
                data = source.recv(CHUNK_BYTES)
                if not data:
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Proxies:
    """A link for every ordered pair of nodes."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self._links = {
            (source, target): Link(endpoints[target])
            for source in endpoints
            for target in endpoints
            if source != target
        }
        self.seen_by = {
            source: {
                target: endpoint if target == source else self._links[source, target].endpoint
                for target, endpoint in endpoints.items()
            }
            for source in endpoints
        }

    def between(self, one: str, other: str) -> tuple[Link, Link]:
        return self._links[one, other], self._links[other, one]

    def lose(self, source: str, target: str) -> None:
        """What source sends does not reach target; the other way all goes on."""
        self._links[source, target].hold("there")
        self._links[target, source].hold("back")

    def cut(self, one: str, other: str) -> None:
        for link in self.between(one, other):
            link.cut()

    def hold(self, one: str, other: str) -> None:
        """Nothing passes between the two, and no connection ends."""
        for link in self.between(one, other):
            link.hold()

    def heal(self) -> None:
        for link in self._links.values():
            link.release()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
