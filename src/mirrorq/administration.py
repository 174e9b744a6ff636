"""What a cluster may be told beside its queues: the same calls on `Node` and on `Client`.

Each call is checked here, before anything is sent, and becomes one command of the catalog. It
returns when the node that was asked has applied it: whatever that node then says or does is
by the new state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mirrorq.errors import PolicyError
from mirrorq.messages import Administrative, ClearPolicy, SetPolicy
from mirrorq.policy import NAME_CHARS_MAX, parse, to_text
from mirrorq.status import PolicyStatus

__all__ = ["Administration"]


class Administration(ABC):
    """The calls; a node carries them out itself, a client has its entry node do it."""

    @abstractmethod
    def _administer(self, command: Administrative, timeout: float | None) -> int:
        """Have a command done; return its value."""

    @abstractmethod
    def policies(self) -> list[PolicyStatus]:
        """Every policy of the cluster, by name."""

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        priority: int = 0,
        apply_to: str = "queues",
        *,
        timeout: float | None = 30,
    ) -> None:
        """Make a policy, or replace the one of this name. It holds at once for all queues.

        Args:
            pattern: a regular expression that is looked for anywhere in a queue's name.
            definition: keys as RabbitMQ writes them, such as {"ha-mode": "exactly",
                "ha-params": 2}; docs/policies.md lists them.
            priority: of the policies that match a queue the one with the highest is in
                force; of equal ones the name that sorts first.
            timeout: seconds to wait for a majority. None waits.

        Raises:
            PolicyError: something is wrong with it; nothing has changed.
            NoQuorum: no majority in time. It may still come into force.
        """
        policy = parse(name, pattern, definition, priority, apply_to)
        self._administer(SetPolicy(policy.name, to_text(policy)), timeout)

    def clear_policy(self, name: str, *, timeout: float | None = 30) -> None:
        """Take a policy away; when there is none of this name, nothing happens.

        Raises:
            PolicyError: no policy can have such a name.
            NoQuorum: no majority in time. It may still be taken away.
        """
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
            raise PolicyError(
                f"a policy's name is a string of 1 to {NAME_CHARS_MAX} characters, not {name!r}"
            )
        self._administer(ClearPolicy(name), timeout)
