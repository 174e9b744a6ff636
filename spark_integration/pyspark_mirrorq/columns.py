"""The columns of a mirrorq DataFrame: names, Spark's types, Arrow's types.

A record batch has to have exactly the declared schema, order and nullability included.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mirrorq.errors import ConfigError
from pyspark_mirrorq.options import Options

__all__ = ["checked_columns", "schema_of"]

_TYPES: dict[str, DataType] = {
    "value": BinaryType(),
    "sequence": LongType(),
    "timestamp": TimestampType(),
    "queue": StringType(),
    "shard": IntegerType(),
    "headers": MapType(StringType(), StringType()),
    "message_id": StringType(),
    "reply_to": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "redelivered": BooleanType(),
    "delivery_count": IntegerType(),
}
_ALWAYS = ("value", "sequence", "timestamp", "queue", "shard")
_HEADERS = ("headers", "message_id")
_DELIVERY = ("redelivered", "delivery_count")


def _names(options: Options) -> tuple[str, ...]:
    """The columns that are read: those asked for by name, or those that go with the options."""
    names: tuple[str, ...] = _ALWAYS
    if options.include_headers:
        names += _HEADERS
    if options.include_delivery:
        names += _DELIVERY
    unknown = [name for name in options.columns if name not in _TYPES]
    if unknown:
        raise ConfigError(f"option columns names {unknown[0]!r}: there are {', '.join(_TYPES)}")
    return options.columns or names


def schema_of(options: Options) -> StructType:
    """What a DataFrame of these options looks like."""
    return StructType([StructField(name, _TYPES[name]) for name in _names(options)])


def checked_columns(options: Options, schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that Spark asks for.

    Raises:
        ConfigError: it is not that of the source: `.schema(…)` was called with another one.
    """
    own = schema_of(options)
    if schema.fieldNames() == own.fieldNames() and all(
        mine.dataType == theirs.dataType for mine, theirs in zip(own, schema, strict=True)
    ):
        return tuple(own.fieldNames())
    raise ConfigError(
        f"format mirrorq has the columns {own.simpleString()}, not {schema.simpleString()}: leave "
        ".schema(…) out, choose columns by the options columns, includeHeaders and "
        "includeDelivery, and cast what was read"
    )
