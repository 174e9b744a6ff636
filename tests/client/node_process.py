"""One node in a process of its own, until its standard input ends.

Its arguments are NAME PATH PEERS; PEERS is JSON: name -> endpoint. It prints "ready" when it takes
part in a cluster. Its input ends with the test, so nothing is left behind when one is killed.
"""

from __future__ import annotations

import json
import sys

from mirrorq.node.node import Node


def main() -> None:
    name, path, peers = sys.argv[1:]
    with Node(name, path=path, peers=json.loads(peers)) as node:
        node.wait_ready(60)
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
