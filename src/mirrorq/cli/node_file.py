"""File of `mirrorq node run --config FILE`: a node's arguments and limits, as TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import attrs

from mirrorq.config import Config
from mirrorq.errors import ConfigError


@attrs.frozen
class NodeFile:
    """The arguments of a node; None: the file does not say."""

    name: str | None = None
    path: Path | None = None
    """In the file relative to the file's directory."""
    peers: dict[str, str] | None = None
    listen: str | None = None
    join: str | list[str] | None = None
    witness: bool | None = None
    keys: Path | None = None
    """As --keys; in the file relative to the file's directory."""
    insecure: bool | None = None
    metrics: str | None = None
    """As --metrics."""
    dashboard: str | None = None
    """As --dashboard."""
    config: Config | None = None

    @classmethod
    def read(cls, file: Path) -> NodeFile:
        """Read a file.

        Raises:
            ConfigError: the file cannot be read, is no TOML, or has an unknown key.
        """
        try:
            given = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from error
        known = [field.name for field in attrs.fields(cls)]
        _refuse_unknown(given, known, f"{file}")
        for key, value in given.items():
            wrong = _type_error(key, value)
            if wrong:
                raise ConfigError(f"{file}: {key} = {value!r}: {wrong}")
        values: dict[str, Any] = dict(given)
        for key in ("path", "keys"):
            if key in values:
                values[key] = file.parent / values[key]
        if "config" in values:
            values["config"] = _config(values["config"], file)
        return cls(**values)

    def over(self, given: NodeFile) -> NodeFile:
        """Return the file's settings, replaced by settings given otherwise."""
        said = attrs.asdict(given, recurse=False)
        return attrs.evolve(self, **{key: said[key] for key in said if said[key] is not None})


def _refuse_unknown(given: dict[str, Any], known: list[str], where: str) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(
            f"{where} says {', '.join(unknown)}, which is not a setting: choose from "
            f"{', '.join(known)}"
        )


def _type_error(key: str, value: object) -> str:
    """Return the fault of a value, "" without a fault."""
    if key in ("peers", "config"):
        if not isinstance(value, dict):
            return f"it must be a table, as [{key}]"
        if key == "peers" and not all(isinstance(one, str) for one in value.values()):
            return 'each must be name = "tcp://host:port"'
    elif key in ("witness", "insecure"):
        if not isinstance(value, bool):
            return "it must be true or false"
    elif key == "join" and isinstance(value, list):
        if not all(isinstance(one, str) for one in value):
            return "it must be a list of endpoints"
    elif not isinstance(value, str):
        return "it must be a string"
    return ""


def _config(given: dict[str, Any], file: Path) -> Config:
    _refuse_unknown(given, [field.name for field in attrs.fields(Config)], f"{file}, [config],")
    try:
        return Config(**given)
    except ConfigError as error:
        raise ConfigError(f"{file}, [config]: {error}") from error
