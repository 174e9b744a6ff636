"""TCP proxies between nodes: each direction of each pair can be let through, held, cut, delayed.

One proxy stands for what one node sees of another, so both directions of a pair are two
connections and four flows. TCP loses nothing inside a connection: what is *held* arrives late
or, when the connection ends first, never, which is what a one-way loss looks like to a peer.

One thread with an event loop serves all of them. Methods may be called from any thread, and
have taken effect when they return.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

__all__ = ["Link", "Proxies"]

CHUNK_BYTES = 1 << 16
FLOWS = ("there", "back")


class _Flow:
    """One direction of a link: whether it is open, and how long it takes."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.delay_s = 0.0


class Link:
    """What `source` reaches `target` through. `there` flows to the target, `back` from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: str) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._loop = loop
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_cut = False
        listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        self._flows = {flow: _Flow() for flow in FLOWS}
        self._server: asyncio.Server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, sock=listener), loop
        ).result()

    # --- From any thread ------------------------------------------------------------------

    def hold(self, *flows: str) -> None:
        """Let nothing through in these directions; connections stay."""

        def work() -> None:
            for flow in flows or FLOWS:
                self._flows[flow].gate.clear()

        self._call(work)

    def release(self) -> None:
        """Let everything through again, at once; what was held too."""
        self._call(self._release)

    def delay(self, milliseconds: int) -> None:
        """Everything takes so much longer from now on, both ways."""

        def work() -> None:
            for flow in self._flows.values():
                flow.delay_s = milliseconds / 1000

        self._call(work)

    def cut(self) -> None:
        """End the connections; new ones are ended at once."""
        self._call(self._cut)

    def close(self) -> None:
        """End everything, for good."""
        self._call(self._close)

    def _call(self, work: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                work()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    # --- In the loop ----------------------------------------------------------------------

    def _release(self) -> None:
        self._is_cut = False
        for flow in self._flows.values():
            flow.gate.set()
            flow.delay_s = 0.0

    def _cut(self) -> None:
        self._is_cut = True
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()

    def _close(self) -> None:
        self._cut()
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        if self._is_cut:
            to_near.transport.abort()
            return
        try:
            far, to_far = await asyncio.open_connection(*self._target)
        except OSError:
            to_near.transport.abort()
            return
        self._writers = [writer for writer in self._writers if not writer.is_closing()]
        self._writers += [to_near, to_far]
        if self._is_cut:
            self._cut()
        self._tasks = [task for task in self._tasks if not task.done()]
        for flow, source, sink in (("there", near, to_far), ("back", far, to_near)):
            self._tasks.append(self._loop.create_task(self._pump(self._flows[flow], source, sink)))

    async def _pump(
        self, flow: _Flow, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        writing = self._loop.create_task(self._write(flow, waiting, sink))
        try:
            with suppress(OSError):
                while data := await source.read(CHUNK_BYTES):
                    await waiting.put((self._loop.time() + flow.delay_s, data))
            await waiting.put((self._loop.time() + flow.delay_s, b""))
            await writing
        finally:
            writing.cancel()
            sink.transport.abort()

    async def _write(
        self,
        flow: _Flow,
        waiting: asyncio.Queue[tuple[float, bytes]],
        sink: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError):
            while True:
                at, data = await waiting.get()
                if (left := at - self._loop.time()) > 0:
                    await asyncio.sleep(left)
                await flow.gate.wait()
                if not data:
                    return
                sink.write(data)
                await sink.drain()


class Proxies:
    """A link for every ordered pair of nodes."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self.endpoints = endpoints
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._links = {
            (source, target): Link(self._loop, endpoints[target])
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
        """node -> endpoints as that node is to see them."""

    def prefix(self, name: str) -> tuple[str, ...]:
        """What stands before the command of this node's process: nothing."""
        return ()

    def between(self, one: str, other: str) -> tuple[Link, Link]:
        return self._links[one, other], self._links[other, one]

    def lose(self, source: str, target: str) -> None:
        """What source sends does not reach target; the other way all goes on."""
        self._links[source, target].hold("there")
        self._links[target, source].hold("back")

    def cut(self, one: str, other: str) -> None:
        """No connection between the two: each finds out at once."""
        for link in self.between(one, other):
            link.cut()

    def hold(self, one: str, other: str) -> None:
        """Nothing passes between the two, and no connection ends."""
        for link in self.between(one, other):
            link.hold()

    def delay(self, one: str, other: str, milliseconds: int) -> None:
        """Everything between the two takes so much longer, each way."""
        for link in self.between(one, other):
            link.delay(milliseconds)

    def mend(self, one: str, other: str) -> None:
        """All is well between the two."""
        for link in self.between(one, other):
            link.release()

    def heal(self) -> None:
        """All is well."""
        for link in self._links.values():
            link.release()

    def close(self) -> None:
        """End the links and their thread."""
        for link in self._links.values():
            link.close()
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    """Wait until everything that was cancelled has ended, in this loop."""
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
