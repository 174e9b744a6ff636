"""The `mirrorq` command.

Exit status: 0 done; 1 refused or failed, with one line on standard error; 2 wrong usage.
"""

from __future__ import annotations

import click

from mirrorq.cli.bench import bench
from mirrorq.cli.booting import force_boot
from mirrorq.cli.check import check
from mirrorq.cli.clients import clients, consumers, disconnect
from mirrorq.cli.copies import backup, restore
from mirrorq.cli.dashboard import dashboard
from mirrorq.cli.forward import forward
from mirrorq.cli.keys import keygen
from mirrorq.cli.lines import browse, get, publish
from mirrorq.cli.local import local
from mirrorq.cli.node import demo, node
from mirrorq.cli.nodes import forget_node
from mirrorq.cli.policies import clear_policy, list_policies, rebalance, set_policy, transfer_master
from mirrorq.cli.queues import delete_queue, list_queues, purge_queue, redrive, status
from mirrorq.cli.repair import repair
from mirrorq.cli.stores import verify
from mirrorq.cli.synchronise import cancel_sync_queue, sync_queue
from mirrorq.cli.top import top
from mirrorq.cli.worker import worker

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mirrorq")
def main() -> None:
    """A replicated, durable, acked work queue embedded in Python services."""


for command in (
    demo,
    node,
    worker,
    local,
    status,
    check,
    dashboard,
    top,
    list_queues,
    clients,
    consumers,
    disconnect,
    set_policy,
    clear_policy,
    list_policies,
    sync_queue,
    cancel_sync_queue,
    transfer_master,
    rebalance,
    forget_node,
    publish,
    get,
    browse,
    purge_queue,
    redrive,
    forward,
    delete_queue,
    backup,
    restore,
    verify,
    repair,
    force_boot,
    keygen,
    bench,
):
    main.add_command(command)
