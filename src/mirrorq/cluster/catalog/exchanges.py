"""The exchanges of the catalog and their bindings. A change gives an exchange a new version: the
index of the changing command."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from attrs import evolve

from mirrorq.cluster.catalog.image import parts_of
from mirrorq.cluster.catalog.records import CatalogResult, refused
from mirrorq.cluster.catalog.size import Count
from mirrorq.protocol.commands import DeclareExchange, DeleteExchange
from mirrorq.protocol.routing import Binding, ExchangeRecord, binding_error, exchange_error


class Exchanges:
    """All exchanges of one catalog, by name. Owned by the catalog: only commands of the log change
    it, the same on every node."""

    def __init__(self) -> None:
        self._records: dict[str, ExchangeRecord] = {}
        self._bound: dict[int, dict[str, None]] = {}
        """Queue id -> exchanges with a binding to the queue."""
        self.count, self.binding_count = Count(), Count()

    def get(self, name: str) -> ExchangeRecord | None:
        """Return an exchange, or None."""
        return self._records.get(name)

    def records(self) -> tuple[ExchangeRecord, ...]:
        """Return all exchanges, sorted by name."""
        return tuple(self._records[name] for name in sorted(self._records))

    # --- Snapshots ------------------------------------------------------------------------

    def image(self) -> Iterable[ExchangeRecord]:
        """Give all present exchanges for a snapshot, each in one record or several."""
        return chain.from_iterable(map(parts_of, tuple(self._records.values())))

    def restore(self, part: ExchangeRecord) -> None:
        """Read a record back."""
        known = self._records.get(part.name)
        if known is None:
            self._enter(evolve(part, bindings=()))
        self._records[part.name] = evolve(
            part, bindings=(*(() if known is None else known.bindings), *part.bindings)
        )
        for binding in part.bindings:
            self._note(part.name, binding)

    # --- Commands, at this index of the log -----------------------------------------------

    def declare(self, index: int, command: DeclareExchange) -> CatalogResult:
        """Make an exchange; an existing exchange must be equal."""
        wrong = exchange_error(command.name, command.kind, command.alternate)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        known = self._records.get(command.name)
        if known is None:
            known = ExchangeRecord(command.name, command.kind, command.alternate, index)
            self._enter(known)
        elif (known.kind, known.alternate) != (command.kind, command.alternate):
            return refused(
                f"exchange {known.name!r} exists with kind {known.kind!r} and alternate "
                f"{known.alternate!r}, not {command.kind!r} and {command.alternate!r}: declare "
                "it with equal properties, or under another name"
            )
        return CatalogResult(value=known.version)

    def delete(self, index: int, command: DeleteExchange) -> CatalogResult:
        """Delete an exchange, with its bindings."""
        known = self._records.get(command.name)
        if known is None:
            return no_exchange(command.name)
        if command.if_unused and known.bindings:
            return refused(
                f"exchange {known.name!r} has {len(known.bindings)} bindings: unbind them"
            )
        for binding in known.bindings:
            self._forget(known.name, binding, ())
        bare = evolve(self._records.pop(known.name), version=0, bindings=())
        self.count.remove(bare)
        return CatalogResult(value=index)

    def bind(self, index: int, known: ExchangeRecord, binding: Binding) -> CatalogResult:
        """Let an exchange lead to a queue."""
        wrong = binding_error(known, binding)
        if wrong:
            return refused(wrong)
        if binding in known.bindings:
            return CatalogResult(value=known.version)
        self._note(known.name, binding)
        return self._rebind(index, known, (*known.bindings, binding))

    def unbind(self, index: int, known: ExchangeRecord, binding: Binding) -> CatalogResult:
        """Remove a binding, if present."""
        kept = tuple(one for one in known.bindings if one != binding)
        if len(kept) == len(known.bindings):
            return CatalogResult(value=known.version)
        self._forget(known.name, binding, kept)
        return self._rebind(index, known, kept)

    def forget_queue(self, index: int, queue_id: int) -> None:
        """Remove all bindings to a deleted queue."""
        for name in self._bound.pop(queue_id, ()):
            exchange = self._records[name]
            for binding in exchange.bindings:
                if binding.queue_id == queue_id:
                    self.binding_count.remove(binding)
            kept = tuple(b for b in exchange.bindings if b.queue_id != queue_id)
            self._rebind(index, exchange, kept)

    def _enter(self, bare: ExchangeRecord) -> None:
        self.count.add(evolve(bare, version=0))
        self._records[bare.name] = bare

    def _note(self, exchange: str, binding: Binding) -> None:
        self.binding_count.add(binding)
        self._bound.setdefault(binding.queue_id, {})[exchange] = None

    def _forget(self, exchange: str, binding: Binding, kept: tuple[Binding, ...]) -> None:
        """Uncount a removed binding; `kept` are the other bindings of the exchange."""
        self.binding_count.remove(binding)
        if not any(one.queue_id == binding.queue_id for one in kept):
            bound = self._bound.get(binding.queue_id, {})
            bound.pop(exchange, None)
            if not bound:
                self._bound.pop(binding.queue_id, None)

    def _rebind(
        self, index: int, exchange: ExchangeRecord, bindings: tuple[Binding, ...]
    ) -> CatalogResult:
        self._records[exchange.name] = evolve(exchange, version=index, bindings=bindings)
        return CatalogResult(value=index)


def no_exchange(name: str) -> CatalogResult:
    """Return the result of a command for a missing exchange."""
    return CatalogResult(
        error="QueueNotFound", text=f"no exchange is named {name!r}: declare it first"
    )
