"""The exchanges of the catalog and their bindings. A change gives an exchange a new version: the
index of the command that changed it."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from mirrorq.cluster.catalog.records import CatalogResult, refused
from mirrorq.protocol.commands import DeclareExchange, DeleteExchange
from mirrorq.protocol.routing import Binding, ExchangeRecord, binding_error, exchange_error


class Exchanges:
    """All exchanges of one catalog, by name. The catalog's own: changed only by commands of the
    log, the same on every node."""

    def __init__(self, records: Iterable[ExchangeRecord] = ()) -> None:
        self._records = {exchange.name: exchange for exchange in records}

    def get(self, name: str) -> ExchangeRecord | None:
        """Return an exchange, or None."""
        return self._records.get(name)

    def records(self) -> tuple[ExchangeRecord, ...]:
        """Return all exchanges, sorted by name."""
        return tuple(self._records[name] for name in sorted(self._records))

    # --- Commands, at this index of the log -----------------------------------------------

    def declare(self, index: int, command: DeclareExchange) -> CatalogResult:
        """Make an exchange; one that is there must be equal."""
        wrong = exchange_error(command.name, command.kind, command.alternate)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        known = self._records.get(command.name)
        if known is None:
            known = ExchangeRecord(command.name, command.kind, command.alternate, index)
            self._records[command.name] = known
        elif (known.kind, known.alternate) != (command.kind, command.alternate):
            return refused(
                f"exchange {known.name!r} exists with kind {known.kind!r} and alternate "
                f"{known.alternate!r}, not {command.kind!r} and {command.alternate!r}: declare "
                "it with equal properties, or under another name"
            )
        return CatalogResult(value=known.version)

    def delete(self, index: int, command: DeleteExchange) -> CatalogResult:
        """Take an exchange away, with its bindings."""
        known = self._records.get(command.name)
        if known is None:
            return no_exchange(command.name)
        if command.if_unused and known.bindings:
            return refused(
                f"exchange {known.name!r} has {len(known.bindings)} bindings: unbind them"
            )
        del self._records[known.name]
        return CatalogResult(value=index)

    def bind(self, index: int, known: ExchangeRecord, binding: Binding) -> CatalogResult:
        """Let an exchange lead to a queue."""
        wrong = binding_error(known, binding)
        if wrong:
            return refused(wrong)
        if binding in known.bindings:
            return CatalogResult(value=known.version)
        return self._rebind(index, known, (*known.bindings, binding))

    def unbind(self, index: int, known: ExchangeRecord, binding: Binding) -> CatalogResult:
        """Take a binding away, if it is there."""
        kept = tuple(one for one in known.bindings if one != binding)
        if len(kept) == len(known.bindings):
            return CatalogResult(value=known.version)
        return self._rebind(index, known, kept)

    def forget_queue(self, index: int, queue_id: int) -> None:
        """A queue is no more: nothing leads to it."""
        for exchange in list(self._records.values()):
            kept = tuple(b for b in exchange.bindings if b.queue_id != queue_id)
            if len(kept) < len(exchange.bindings):
                self._rebind(index, exchange, kept)

    def _rebind(
        self, index: int, exchange: ExchangeRecord, bindings: tuple[Binding, ...]
    ) -> CatalogResult:
        self._records[exchange.name] = evolve(exchange, version=index, bindings=bindings)
        return CatalogResult(value=index)


def no_exchange(name: str) -> CatalogResult:
    """Return what a command gets whose exchange is not there."""
    return CatalogResult(
        error="QueueNotFound", text=f"no exchange is named {name!r}: declare it first"
    )
