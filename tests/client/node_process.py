"""One node in a process of its own, until its standard input ends.

Its arguments are NAME PATH PEERS; PEERS is JSON: name -> endpoint. It prints "ready" when it takes
part in a cluster. Its input ends with the test, so nothing is left behind when one is killed.
"""

from __future__ import annotations

import json
import sys

from mirrorq.config import Config
from mirrorq.node.node import Node

PATIENT = Config(failure_ms=3000, lag_ms_max=3000, session_expiry_ms=3000)
"""A node that stands still for a second, as on a busy machine, is not taken for dead."""


def main() -> None:
    name, path, peers = sys.argv[1:]
    with Node(name, path=path, peers=json.loads(peers), config=PATIENT) as node:
        node.wait_ready(60)
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
