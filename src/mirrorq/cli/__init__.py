"""The `mirrorq` command.

Exit status: 0 done; 1 refused or failed, with one line on standard error; 2 wrong usage.
"""

from __future__ import annotations

import click

from mirrorq.cli.acting import delete, move, pause, redrive, resume
from mirrorq.cli.bench import bench
from mirrorq.cli.booting import force_boot
from mirrorq.cli.check import check
from mirrorq.cli.clients import clients, consumers, disconnect
from mirrorq.cli.copies import backup, restore
from mirrorq.cli.dashboard import dashboard
from mirrorq.cli.forward import forward
from mirrorq.cli.grouping import Main
from mirrorq.cli.keys import keygen
from mirrorq.cli.lines import browse, get, publish
from mirrorq.cli.local import local
from mirrorq.cli.node import demo, node
from mirrorq.cli.nodes import forget_node
from mirrorq.cli.policies import clear_policy, list_policies, rebalance, set_policy, transfer_master
from mirrorq.cli.queues import (
    delete_queue,
    info,
    list_nodes,
    list_queues,
    purge_queue,
    status,
)
from mirrorq.cli.repair import repair
from mirrorq.cli.stores import verify
from mirrorq.cli.synchronise import cancel_sync_queue, sync_queue
from mirrorq.cli.top import top
from mirrorq.cli.worker import worker

__all__ = ["main"]


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mirrorq")
def main() -> None:
    """A replicated, durable, acked work queue embedded in Python services."""


for command in (demo, worker, forward, status, check, top, dashboard, local, bench):
    main.add_command(command)
main.add_group(
    "queue",
    "Queues and their messages.",
    {
        "ls": list_queues,
        "info": info,
        "put": publish,
        "get": get,
        "browse": browse,
        "delete": delete,
        "move": move,
        "redrive": redrive,
        "purge": purge_queue,
        "rm": delete_queue,
        "pause": pause,
        "resume": resume,
        "sync": sync_queue,
        "cancel-sync": cancel_sync_queue,
        "move-master": transfer_master,
    },
)
main.add_group(
    "node",
    "Nodes: run one, list them, take one out.",
    {
        "run": node,
        "ls": list_nodes,
        "rebalance": rebalance,
        "forget": forget_node,
        "force-boot": force_boot,
    },
)
main.add_group(
    "policy",
    "What holds for queues whose names match.",
    {"ls": list_policies, "set": set_policy, "rm": clear_policy},
)
main.add_group(
    "client",
    "Clients and consumers.",
    {"ls": clients, "consumers": consumers, "disconnect": disconnect},
)
main.add_group(
    "store",
    "What nodes have on their disks.",
    {"verify": verify, "backup": backup, "restore": restore, "repair": repair},
)
main.add_group("key", "Keys of nodes and clients.", {"new": keygen})
