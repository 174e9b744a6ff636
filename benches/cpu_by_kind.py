"""CPU time of all processes of a bench of Spark, by what they are; and the nodes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from mirrorq.demo.ports import free_ports

__all__ = ["KINDS", "Stopwatch", "nodes"]

NODE = """
import json, sys
import mirrorq
name, path, peers = sys.argv[1:]
with mirrorq.Node(name, path=path, peers=json.loads(peers)) as node:
    node.wait_ready(60)
    print("ready", flush=True)
    sys.stdin.read()
"""

KINDS = ("nodes", "JVM", "Python", "rest")
"""Whose CPU time: nodes, Spark's JVM, its Python processes, and this one with those that put."""


def nodes(folder: Path, count: int) -> tuple[list[subprocess.Popen[str]], str]:
    """Start a cluster; return its processes and endpoints."""
    names = "abc"[:count]
    ports = free_ports(count)
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", NODE, name, str(folder / name), json.dumps(peers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    return started, ",".join(peers.values())


def ticks() -> dict[int, tuple[str, int, str, int]]:
    """(kind, CPU time, kind of those that it has waited for, their CPU time) of each process that
    this one has started, and of itself."""
    parents, times, names = {}, {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            names[pid] = (entry / "cmdline").read_text()
            parents[pid] = int(fields[1])
            times[pid] = (sum(map(int, fields[11:13])), sum(map(int, fields[13:15])))
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    spent = {}
    for pid in found & times.keys():
        own, ended = times[pid]
        if "java" in names[pid].partition("\0")[0]:
            # What it has started and waited for are Python processes.
            spent[pid] = ("JVM", own, "Python", ended)
        else:
            is_node, is_spark = NODE in names[pid], "pyspark" in names[pid]
            kind = "nodes" if is_node else "Python" if is_spark else "rest"
            spent[pid] = (kind, own, kind, ended)
    return spent


class Stopwatch:
    """CPU time by kind of process since it was made."""

    def __init__(self) -> None:
        self._before = ticks()

    def read(self) -> dict[str, float]:
        """Seconds."""
        spent, after = dict.fromkeys(KINDS, 0), ticks()
        for pid, (kind, own, ended_kind, ended) in after.items():
            before = self._before.get(pid, ("", 0, "", 0))
            spent[kind] += own - before[1]
            spent[ended_kind] += ended - before[3]
        for pid in self._before.keys() - after.keys():
            # It counted with whoever waited for it, all of its life; not every one is waited for.
            kind, own, _, ended = self._before[pid]
            spent[kind] -= own + ended
        return {kind: max(one, 0) / os.sysconf("SC_CLK_TCK") for kind, one in spent.items()}
