"""The policies of the catalog: which is in force for a queue, and what holds for it."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from mirrorq.protocol.policy import (
    DEFAULT,
    Definition,
    Policy,
    definition_with,
    from_text,
    in_force,
    to_text,
)
from mirrorq.protocol.shard_names import logical_name, split_name


class Policies:
    """All policies of one catalog, by name. The catalog's own: changed only by commands of the log,
    the same on every node."""

    def __init__(self, texts: Iterable[tuple[str, str]] = ()) -> None:
        """Read policies back.

        Raises:
            PolicyError: a text is none of a policy.
        """
        self._policies = {name: from_text(name, text) for name, text in texts}

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of each."""
        return tuple((policy.name, to_text(policy)) for policy in self.records())

    def records(self) -> tuple[Policy, ...]:
        """Return all policies, sorted by name."""
        return tuple(self._policies[name] for name in sorted(self._policies))

    def policy_of(self, name: str) -> Policy | None:
        """Return the policy in force for a queue of this name, or None; a shard has its queue's."""
        return in_force(self._policies.values(), logical_name(name))

    def definition_of(self, name: str, arguments: str = "") -> Definition:
        """Return what holds for a queue of this name that was declared with these arguments."""
        if not self._policies and not arguments:
            return DEFAULT
        policy = self.policy_of(name) if self._policies else None
        definition = definition_with(policy, arguments)
        if definition.expires is not None and split_name(name) is not None:
            # Shards are used unequally: one that nobody needs now is no less a part of its queue.
            return evolve(definition, expires=None)
        return definition

    def put(self, policy: Policy) -> None:
        """Set a policy, in place of what had its name."""
        self._policies[policy.name] = policy

    def clear(self, name: str) -> None:
        """Take a policy away, if it is there."""
        self._policies.pop(name, None)
