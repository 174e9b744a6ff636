"""A network namespace for each node, where the machine allows it.

A bridge joins the namespaces, workers reach the nodes by the bridge's own address. What passes
between two nodes is lost in the kernel, by a black-hole route for each direction: packets are gone
without a word, TCP sends them again, and no connection ends for it, as when a cable is pulled. A
proxy cannot do that. There is no loud cut here: `cut` is the same as `hold`.

Everything is named after this process; what a killed run has left is removed by the next.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress

__all__ = ["NamespaceError", "Namespaces"]

PORT = 7400
_NAME = re.compile(r"\bmq(\d+)-\w+")
_BRIDGE = re.compile(r"\bmqbr(\d+)\b")


class NamespaceError(Exception):
    """The machine does not allow it; says why."""


class Namespaces:
    """The network of one run.

    Raises:
        NamespaceError: not root, no `ip` command, or the kernel refuses.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        if os.geteuid() != 0:
            raise NamespaceError("network namespaces need root")
        if shutil.which("ip") is None:
            raise NamespaceError("network namespaces need the command ip (iproute2)")
        self._pid = os.getpid()
        self._bridge = f"mqbr{self._pid}"
        self._names = names
        self._lost: set[tuple[str, str]] = set()
        _remove_left()
        net = self._free_net()
        self._addresses = {name: f"{net}.{10 + index}" for index, name in enumerate(names)}
        self.endpoints = {
            name: f"tcp://{address}:{PORT}" for name, address in self._addresses.items()
        }
        self.seen_by = dict.fromkeys(names, self.endpoints)
        """node -> endpoints as that node is to see them."""
        try:
            self._make(f"{net}.1/24")
        except NamespaceError:
            self.close()
            raise

    def _make(self, bridge_address: str) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", bridge_address, "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name, address in self._addresses.items():
            space, outside = self._space(name), f"mq{self._pid}{name}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")

    def _free_net(self) -> str:
        """The first three bytes of a network in the range for tests that nobody here uses."""
        taken = _ip("-o", "addr")
        for number in range(512):
            turned = (number + self._pid) % 512
            net = f"198.{18 + turned // 256}.{turned % 256}"
            if f"{net}." not in taken:
                return net
        raise NamespaceError("no network of 198.18.0.0/15 is free")

    def _space(self, name: str) -> str:
        return f"mq{self._pid}-{name}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What stands before the command of this node's process."""
        return ("ip", "netns", "exec", self._space(name))

    # --- Faults ---------------------------------------------------------------------------

    def lose(self, source: str, target: str) -> None:
        """What source sends does not reach target; the other way all goes on."""
        if (source, target) not in self._lost:
            self._lost.add((source, target))
            self._route("add", source, target)

    def hold(self, one: str, other: str) -> None:
        """Nothing passes between the two."""
        self.lose(one, other)
        self.lose(other, one)

    cut = hold

    def delay(self, one: str, other: str, milliseconds: int) -> None:
        """All that these two send takes longer, where the kernel has netem."""
        for name in (one, other):
            command = ("tc", "-n", self._space(name), "qdisc", "replace", "dev", "eth0", "root")
            with suppress(NamespaceError):
                _run(*command, "netem", "delay", f"{milliseconds}ms")

    def mend(self, one: str, other: str) -> None:
        """All is well between the two."""
        for source, target in ((one, other), (other, one)):
            if (source, target) in self._lost:
                self._lost.discard((source, target))
                self._route("del", source, target)
            with suppress(NamespaceError):
                _run("tc", "-n", self._space(source), "qdisc", "del", "dev", "eth0", "root")

    def heal(self) -> None:
        """All is well."""
        for index, one in enumerate(self._names):
            for other in self._names[index + 1 :]:
                self.mend(one, other)

    def _route(self, change: str, source: str, target: str) -> None:
        address = f"{self._addresses[target]}/32"
        _ip("-n", self._space(source), "route", change, "blackhole", address)

    def close(self) -> None:
        """Remove everything; the processes in it have ended."""
        for name in self._names:
            with suppress(NamespaceError):
                _ip("netns", "del", self._space(name))
        with suppress(NamespaceError):
            _ip("link", "del", self._bridge)


def _remove_left() -> None:
    """What a run has left whose process is no more."""
    for pid, name in {(m[1], m[0]) for m in _NAME.finditer(_ip("netns", "list"))}:
        if not _lives(int(pid)):
            with suppress(NamespaceError):
                _ip("netns", "del", name)
    for pid, name in {(m[1], m[0]) for m in _BRIDGE.finditer(_ip("-o", "link"))}:
        if not _lives(int(pid)):
            with suppress(NamespaceError):
                _ip("link", "del", name)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NamespaceError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
