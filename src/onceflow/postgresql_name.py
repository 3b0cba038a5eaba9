"""Names of tables and columns in queries that are executed with parameters, where psycopg reads a ``%`` as the start of one."""

from __future__ import annotations

from psycopg import sql
from psycopg.abc import AdaptContext


class Name(sql.Identifier):
    """As ``sql.Identifier``, with ``%`` doubled; for such queries only, as without parameters nothing halves it again."""

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        return super().as_bytes(context).replace(b"%", b"%%")
