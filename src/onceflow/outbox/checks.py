"""The refusals that all databases share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from onceflow.errors import Fenced, OutboxMismatch
from onceflow.outbox.position import Sent, digest_of
from onceflow.outbox.sql import TableName


def check_found(table: str, found: Collection[str], required: Sequence[str]) -> None:
    """Raises OutboxMismatch with every column that is missing."""
    missing = [name for name in required if name not in found]
    if not found:
        raise not_an_outbox(f"there is no table {table}")
    if missing:
        raise not_an_outbox(f"table {table} has no column {', '.join(missing)}")


def check_aside(table: TableName, outbox: Mapping[str, str], aside: Mapping[str, bool]) -> None:
    """Raises OutboxMismatch unless whole rows can be set aside.

    ``outbox``: the type of each of its columns; ``aside``: of each column there, whether a value can be put into it.
    """
    computed = [name for name in outbox if not aside.get(name, True)]
    if computed:
        raise OutboxMismatch(
            f"table {table.aside} computes its column {', '.join(computed)}, so no row of {table} can be set aside",
            action=f"give {table.aside} plain columns: it keeps what the row had",
        )
    missing = {name: kind for name, kind in outbox.items() if name not in aside}
    if missing:
        statements = "; ".join(
            f"alter table {table.aside} add column {quoted(name)} {kind}" for name, kind in missing.items()
        )
        raise OutboxMismatch(
            f"table {table.aside} has no column {', '.join(missing)}: a row of {table} that is set aside would lose it",
            action=f"{statements.strip()} (for PostgreSQL `onceflow outbox init` does it)",
        )


def quoted(name: str) -> str:
    """A column's name as both databases take any name."""
    return '"{}"'.format(name.replace('"', '""'))


def not_an_outbox(what: str) -> OutboxMismatch:
    """The table has not the shape that ``sql.py`` gives it."""
    return OutboxMismatch(what, action="make the outbox with the SQL that `onceflow outbox init` prints")


def moved_on(address: str) -> Fenced:
    """The table's count of batches is not the one that this relay left."""
    return Fenced(
        f"another relay has gone on with {address}", action="nothing, if the other one is meant to run", address=address
    )


def check_rows(address: str, sent: Sent, deleted: Iterable[tuple[int, object]]) -> None:
    """Raises OutboxMismatch unless the rows deleted are those that were sent; the caller then deletes none.

    Of (position, id) as the database has them: an id that is null, of a row that is set aside, was read as a text as well.
    """
    found = [(position, str(event_id)) for position, event_id in deleted]
    if digest_of(found) != sent.digest:
        raise OutboxMismatch(
            f"{address}: the rows of batch {sent.batch} are not those in the table ({len(found)} of "
            f"{sum(1 for _ in sent.positions())} are there): the database lost commits, or somebody else changed or deleted rows",
            action="see docs/outbox.md, 'When the table and Kafka disagree'",
            batch=sent.batch,
            rows=sent.rows,
        )
