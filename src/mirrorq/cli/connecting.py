"""Shared parts of the commands: connections, failures, lists."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.core import ParameterSource

from mirrorq.errors import AuthenticationError, ConfigError, MirrorQError, NoQuorum
from mirrorq.protocol.printable import escaped

if TYPE_CHECKING:
    from mirrorq.client.client import Client
    from mirrorq.security.settings import Security

Command = TypeVar("Command", bound=Callable[..., Any])

URL = "MIRRORQ_URL"
KEYS = "MIRRORQ_KEYS"
PAUSE_S = 1.0
"""Time that read-only commands wait for a majority."""


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines. Control characters for a terminal, as in a foreign name, are shown escaped."""
    click.echo(escaped(text, kept="\n\t"), err=err)


def standard_input() -> TextIO:
    """Return the standard input, which the process that has started the command may have closed."""
    return _open_stream(sys.stdin, "standard input")


def standard_output() -> TextIO:
    """Return the standard output, as `standard_input` does."""
    return _open_stream(sys.stdout, "standard output")


def _open_stream(stream: TextIO | None, what: str) -> TextIO:
    if stream is None:
        raise Failed(f"{what} is closed: start the command with one, as /dev/null")
    return stream


class Failed(click.ClickException):
    """One line on standard error, exit status 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        echo("mirrorq: " + " ".join(self.format_message().split()), err=True)


class Misused(click.UsageError):
    """A wrong command line: one line on standard error, exit status 2, no node was asked."""

    show = Failed.show


class Number(click.FloatRange):
    """An option's number. nan, which no bound keeps out, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def checked_time(context: click.Context, param: click.Parameter, value: str) -> str | float:
    """Return an option's time: seconds, or a text with a unit. A callback of options."""
    from mirrorq.api.publish_options import milliseconds

    given: str | float = value
    with suppress(ValueError):
        given = float(value)
    try:
        milliseconds("the time", given)
    except ConfigError as error:
        raise click.BadParameter(str(error), context, param) from None
    return given


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors of the library or the system into one line and exit status 1."""
    try:
        yield
    except BrokenPipeError:
        # The reader of the output has gone; Python's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Failed("the reader of the output has gone") from None
    except (MirrorQError, TimeoutError) as error:
        raise Failed(f"{error}{_source_text()}") from error
    except OSError as error:
        raise Failed(str(error)) from error


def _source_text() -> str:
    """Return a text about the source of endpoints that were not typed."""
    return f". The endpoints are those of ${URL}" if is_from_environment("endpoints") else ""


def is_from_environment(name: str) -> bool:
    """Return true if an option of the running command was not typed but is in the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT


def reach_options(command: Command) -> Command:
    """Options of each way to a cluster: `insecure`, `wait` and `keys`."""
    for option in (
        with_keys,
        click.option(
            "--wait",
            default=10.0,
            show_default=True,
            type=Number(min=0),
            help="Seconds to wait for a node that answers.",
        ),
        click.option("--insecure", is_flag=True, help="Allow other addresses than loopback."),
    ):
        command = option(command)
    return command


def cluster_options(*, required: bool) -> Callable[[Command], Command]:
    """Options for the way to a cluster: `endpoints`, `insecure`, `wait` and `keys`."""

    def decorate(command: Command) -> Command:
        return click.option(
            "--connect",
            "endpoints",
            envvar=URL,
            show_envvar=True,
            required=required,
            metavar="ENDPOINTS",
            help="Nodes to try, as tcp://host:port joined by commas, or a URL.",
        )(reach_options(command))

    return decorate


def connecting(command: Command) -> Command:
    """Options of a command that is a client of a cluster; the command gets `client`."""
    return _connecting(command, looks=False)


def looking(command: Command) -> Command:
    """Options of a read-only command, which also runs without a majority."""
    return _connecting(command, looks=True)


def _connecting(command: Command, *, looks: bool) -> Command:
    @cluster_options(required=True)
    @functools.wraps(command)
    def with_options(
        *arguments: Any,
        endpoints: str,
        insecure: bool,
        wait: float,
        keys: Path | None,
        **options: Any,
    ) -> Any:
        with (
            failing(),
            connected(endpoints, insecure=insecure, wait=wait, keys=keys, looks=looks) as client,
        ):
            return command(*arguments, client=client, **options)

    return with_options  # type: ignore[return-value]


def with_keys(command: Command) -> Command:
    """The option --keys; the command gets `keys`."""
    return click.option(
        "--keys",
        envvar=KEYS,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help=f"Directory of keys.toml and a secret key, or the secret's file. Default: ${KEYS}.",
    )(command)


def loaded(keys: Path | None, name: str | None = None) -> Security | None:
    """Return the keys of --keys, None without the option."""
    if keys is None:
        return None
    from mirrorq.security.settings import Security

    return Security.load(keys, name)


@contextmanager
def connected(
    endpoints: str,
    *,
    insecure: bool,
    wait: float,
    keys: Path | None = None,
    looks: bool = False,
) -> Iterator[Client]:
    """Yield a client that has contact with a majority; close the client at the end.

    Args:
        looks: a read-only command shows one node's view, with a note if there is no majority.
    """
    from mirrorq.client.address import Address
    from mirrorq.client.client import connect

    # An address says itself which keys it means, and may take them from the environment.
    named = Address.of(endpoints)
    is_named = bool(named.key or named.options.get("keys"))
    security = None if is_named and is_from_environment("keys") else loaded(keys)
    with connect(endpoints, insecure=insecure, security=security, timeout=wait) as client:
        if looks:
            client._wait_founded(wait)
            try:
                # A moment's pause, as on a busy machine, is not worth a word.
                client.wait_ready(min(wait, PAUSE_S))
            except NoQuorum:
                name = client.entry_node
                if _knows_nothing(client):
                    raise Failed(
                        f"node {name} has had no contact with a majority since its start, and "
                        "shows nothing before: start more of its cluster's nodes. `mirrorq store "
                        "verify` shows what is on its disk"
                    ) from None
                text = f"node {name} has no contact with a majority: this is what it knew last"
                echo(f"mirrorq: {text}", err=True)
        else:
            client.wait_ready(wait)
        yield client


def _knows_nothing(client: Client) -> bool:
    """Return true if the entry node has never applied the catalog: it lists not even itself."""
    with suppress(AuthenticationError):
        return not client.nodes()
    return False


def as_json(command: Command) -> Command:
    """The option --json; the command gets `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON.")(command)


def acted(is_json: bool, text: str, **done: Any) -> None:
    """Report a command's result: a line, or one JSON object."""
    echo(json.dumps(done, default=str) if is_json else text)


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, is_json: bool) -> None:
    """List something: a table on a terminal, tabs between columns elsewhere, or JSON."""
    output = standard_output()
    if is_json:
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        echo(json.dumps(listed, indent=2, default=list))
    elif output.isatty():
        _print_table(columns, rows)
    else:
        echo("\t".join(columns))
        for row in rows:
            echo("\t".join(map(cell_text, row)))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for index, column in enumerate(columns):
        is_number = bool(rows) and type(rows[0][index]) in (int, float)
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        # As texts: a name in brackets is no markup.
        table.add_row(*(Text(cell_text(value)) for value in row))
    Console().print(table)


def cell_text(value: object) -> str:
    """Return the text of a value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escaped(",".join(map(str, value))) or "-"
    return escaped(str(value))
