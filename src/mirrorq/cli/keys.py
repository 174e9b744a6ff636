"""`mirrorq key new`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import KEYS, acted, as_json

if TYPE_CHECKING:
    from mirrorq.security.roles import Key


@click.command()
@click.argument("name")
@click.option(
    "--role",
    default="client",
    show_default=True,
    type=click.Choice(["peer", "client", "admin"]),
    help="peer: the node NAME. client: what the patterns allow. admin: everything.",
)
@click.option(
    "--keys",
    envvar=KEYS,
    default="keys",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Where the files go. Default: ${KEYS}.",
)
@click.option("--write", multiple=True, metavar="PATTERN", help="Queues that it may publish to.")
@click.option("--read", multiple=True, metavar="PATTERN", help="Queues that it may take from.")
@click.option(
    "--configure", multiple=True, metavar="PATTERN", help="Queues that it may make and delete."
)
@click.option("--queues", type=click.IntRange(0), help="How many it may make.")
@as_json
def keygen(
    name: str,
    role: str,
    keys: Path,
    write: tuple[str, ...],
    read: tuple[str, ...],
    configure: tuple[str, ...],
    queues: int | None,
    is_json: bool,
) -> None:
    """Make a key pair for NAME: a secret file, and an entry in keys.toml.

    In a PATTERN * stands for any characters: --write 'orders.*'. Repeat the options for more.
    """
    from mirrorq.security.key_files import add_key, secret_path, write_secret
    from mirrorq.security.roles import KEYS_NAME, Key, Role
    from mirrorq.system import make_private_directory
    from mirrorq.transport.curve import new_key_pair

    public_key, secret_key = new_key_pair()
    patterns = {"write": write, "read": read, "configure": configure}
    key = Key(name, public_key, Role(role), **patterns, queues=queues)
    make_private_directory(keys)
    secret = secret_path(keys, name)
    write_secret(secret, secret_key)
    try:
        add_key(keys / KEYS_NAME, key)
    except BaseException:
        secret.unlink()
        raise
    listed = keys / KEYS_NAME
    made = {"name": name, "role": role, "public_key": public_key}
    acted(is_json, _next_steps(key, secret, listed), **made, secret=secret, listed=listed)


def _next_steps(key: Key, secret: Path, listed: Path) -> str:
    lines = [
        f"secret key: {secret} (mode 0600; it belongs on the machine of {key.name}, nowhere else)",
        f"public key: {key.public_key}, listed in {listed} as {key.name}, role {key.role.value}",
        "",
        f"Next: copy {listed.name} to every node and every client, beside its secret key. Nodes",
        "that run notice the change within a second. Then:",
    ]
    if key.role.value == "peer":
        lines += [
            f"  mirrorq node run {key.name} --keys {listed.parent} …",
            f'  or Node("{key.name}", security=mirrorq.Security.load("{listed.parent}", '
            f'"{key.name}"), …)',
        ]
    else:
        command = "status" if key.role.value == "admin" else "queue ls"
        lines += [
            f"  mirrorq {command} --keys {secret} --connect ENDPOINTS",
            f'  or mirrorq.connect(ENDPOINTS, security=mirrorq.Security.load("{secret}"))',
        ]
    if key.role.value == "client" and not (key.write or key.read or key.configure):
        lines += ["", f"{key.name} may do nothing yet: give it patterns in {listed}."]
    return "\n".join(lines)
