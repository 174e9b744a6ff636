"""Commands by noun: the commands of each group, and answers to other spellings."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from mirrorq.cli.connecting import Misused, failing


class Main(click.Group):
    """The groups, and the commands outside groups."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._moved: dict[str, str] = {}
        """Name of a command without its group -> place of the command."""

    def add_group(self, noun: str, text: str, commands: dict[str, click.Command]) -> None:
        """Add a noun and its commands, by their verbs."""
        group = Noun(noun, help=text)
        for verb, command in commands.items():
            assert command.name is not None
            self._moved[command.name] = f"{noun} {verb}"
            command.name = verb
            group.add_command(command)
        self.add_command(group)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Its errors become one line, those of its output too. A command that
        connects does so by itself: it knows where its endpoints are from."""
        with failing():
            return super().invoke(ctx)

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = words[0]
        if name not in self.commands and name in self._moved:
            _refer(context, name, self._moved[name])
        return super().resolve_command(context, words)


class Noun(click.Group):
    """A group. `mirrorq node NAME`, without a verb, is answered as well."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.name == "node" and words[0] not in self.commands:
            _refer(context, words[0], "run")
        return super().resolve_command(context, words)

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        try:
            return super().parse_args(context, words)
        except click.NoSuchOption:
            if self.name != "node" or set(words) & self.commands.keys():
                raise
            _refer(context, "", "run")


def _refer(context: click.Context, said: str, meant: str) -> NoReturn:
    path = context.command_path
    raise Misused(f"'{path} {said}'".replace(" '", "'") + f" is '{path} {meant}': see '{path} -h'")
