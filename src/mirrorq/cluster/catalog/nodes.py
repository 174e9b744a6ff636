"""Nodes known to the catalog: the newest incarnation of each name, and stores of the past."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from mirrorq.cluster.catalog.records import CatalogResult, NodeRecord, past_text, refused
from mirrorq.protocol.commands import NodeStopped, RegisterNode
from mirrorq.protocol.identities import MemberId, SessionId, StoreId, is_set_back


class Nodes:
    """All nodes of one catalog, by name, and the stores of forgotten nodes. Owned by the catalog:
    only commands of the log change it, the same on every node."""

    def __init__(self) -> None:
        self._records: dict[str, NodeRecord] = {}
        self._past: dict[StoreId, None] = {}

    def restore(self, record: NodeRecord) -> None:
        """Read a node back."""
        self._records[record.name] = record

    # --- Questions ------------------------------------------------------------------------

    def get(self, name: str) -> NodeRecord | None:
        """Return the record of a node name, or None."""
        return self._records.get(name)

    def records(self) -> tuple[NodeRecord, ...]:
        """Return all nodes, sorted by name."""
        return tuple(self._records[name] for name in sorted(self._records))

    def past(self) -> tuple[StoreId, ...]:
        """Return the stores of forgotten nodes, in the order of forgetting."""
        return tuple(self._past)

    def is_past(self, store: StoreId) -> bool:
        """Return true if the store belonged to a node which was forgotten."""
        return store in self._past

    def is_current(self, member: MemberId) -> bool:
        """Return true if the member is the newest known incarnation of a node."""
        record = self._records.get(member.node)
        return record is not None and record.member == member

    def is_superseded(self, member: MemberId) -> bool:
        """Return true if a newer incarnation of the member's store has been registered."""
        record = self._records.get(member.node)
        return (
            record is not None
            and record.store == member.store
            and record.incarnation > member.incarnation
        )

    def was_stopped(self, member: MemberId) -> bool:
        """Return true if the user closed the incarnation: its end is a shutdown."""
        record = self._records.get(member.node)
        return record is not None and record.member == member and record.is_stopped

    def incarnation_of(self, owner: SessionId | None) -> MemberId | None:
        """Return the node incarnation of a handle, if the incarnation is current."""
        record = None if owner is None else self._records.get(owner.node)
        if owner is None or record is None or record.incarnation != owner.incarnation:
            return None
        return record.member

    def was_set_back(self, member: MemberId) -> bool:
        """Return true if the incarnation goes on from an earlier copy of its store."""
        record = self._records.get(member.node)
        return (
            record is not None
            and record.store == member.store
            and is_set_back(member.incarnation, record.incarnation)
        )

    # --- Change ---------------------------------------------------------------------------

    def register(self, command: RegisterNode) -> CatalogResult:
        """Register a started node; a result without a node name means no change."""
        if self.is_past(StoreId(command.node, command.store)):
            return refused(past_text(command.node))
        known = self._records.get(command.node)
        if known is not None and known.store == command.store:
            if command.incarnation < known.incarnation:
                return refused(
                    f"node {command.node} is registered with incarnation "
                    f"{known.incarnation}; incarnation {command.incarnation} is of an older "
                    "process or a restored store: stop it"
                )
            if command.incarnation == known.incarnation:
                return CatalogResult()
        self._records[command.node] = NodeRecord(
            command.node, command.store, command.incarnation, command.endpoint, command.witness
        )
        return CatalogResult(nodes=(command.node,))

    def stop(self, command: NodeStopped) -> CatalogResult:
        """Note a node as closed by its user."""
        known = self._records.get(command.node)
        named = MemberId(command.node, command.store, command.incarnation)
        if known is None or known.member != named or known.is_stopped:
            return CatalogResult()
        self._records[command.node] = evolve(known, is_stopped=True)
        return CatalogResult(nodes=(command.node,))

    def remove(self, name: str) -> None:
        """Forget a node; `bury` keeps its store from coming back."""
        del self._records[name]

    def bury(self, stores: Iterable[StoreId]) -> None:
        """Note stores which no longer belong to the cluster."""
        self._past.update(dict.fromkeys(stores))

    def outlive(self, survivor: NodeRecord, lost: Iterable[StoreId]) -> None:
        """Keep only one node. All other stores, and the survivor's old store, are of the past."""
        self.bury([*lost, *(StoreId(node.name, node.store) for node in self.records())])
        self._records = {survivor.name: survivor}
