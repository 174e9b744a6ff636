"""The policies of the catalog: the policy in force for a queue, and its definition."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from attrs import evolve

from mirrorq.cluster.catalog.image import PolicyRecord, SendingPattern
from mirrorq.cluster.catalog.size import Count
from mirrorq.protocol.name_pattern import is_found
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

SENDING_MAX = 100
"""Patterns remembered; beyond the limit every queue may have sent dead letters."""
EVERY_NAME = ""
"""The pattern found in every name."""


class Policies:
    """All policies of one catalog, by name. Owned by the catalog: only commands of the log change
    it, the same on every node."""

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self._sending: dict[str, None] = {}
        """Patterns of all policies, past ones too, with a dead-letter queue."""
        self.count = Count()

    def image(self) -> Iterable[PolicyRecord | SendingPattern]:
        """Give all present policies, for a snapshot."""
        return chain(map(_record, self.records()), map(SendingPattern, tuple(self._sending)))

    def records(self) -> tuple[Policy, ...]:
        """Return all policies, sorted by name."""
        return tuple(self._policies[name] for name in sorted(self._policies))

    def may_have_sent(self, name: str) -> bool:
        """Return true if a queue of the name may ever have sent dead letters by a policy."""
        logical = logical_name(name)
        return any(is_found(pattern, logical) for pattern in self._sending)

    def has(self, name: str) -> bool:
        """Return true if a policy has the name."""
        return name in self._policies

    def policy_of(self, name: str) -> Policy | None:
        """Return the policy in force for a queue name, or None. A shard has its queue's policy."""
        return in_force(self._policies.values(), logical_name(name))

    def definition_of(self, name: str, arguments: str = "") -> Definition:
        """Return the definition for a queue name and the arguments of its declaration."""
        if not self._policies and not arguments:
            return DEFAULT
        policy = self.policy_of(name) if self._policies else None
        definition = definition_with(policy, arguments)
        if definition.expires is not None and split_name(name) is not None:
            # Shards are used unequally: a shard without use remains a part of its queue.
            return evolve(definition, expires=None)
        return definition

    def put(self, policy: Policy) -> None:
        """Set a policy; replace a policy of the same name."""
        self.clear(policy.name)
        self._policies[policy.name] = policy
        self.count.add(_record(policy))
        if policy.definition.dead_letter_queue and EVERY_NAME not in self._sending:
            self._sending[policy.pattern] = None
            if len(self._sending) > SENDING_MAX:
                self._sending = {EVERY_NAME: None}

    def restore(self, record: PolicyRecord | SendingPattern) -> None:
        """Read a policy, or a pattern of a past policy, back.

        Raises:
            PolicyError: the text is no policy.
        """
        if isinstance(record, SendingPattern):
            self._sending[record.pattern] = None
        else:
            self.put(from_text(record.name, record.text))

    def clear(self, name: str) -> None:
        """Remove a policy, if present."""
        known = self._policies.pop(name, None)
        if known is not None:
            self.count.remove(_record(known))


def _record(policy: Policy) -> PolicyRecord:
    return PolicyRecord(policy.name, to_text(policy))
