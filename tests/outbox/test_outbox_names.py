"""Columns of a user's own, whatever they are called."""

from __future__ import annotations

import uuid
from contextlib import closing

import psycopg
from psycopg import sql as query

from onceflow.outbox import sql
from onceflow.outbox.position import Sent
from onceflow.outbox.service import outbox_at
from onceflow.outbox.table import Limits

ODD = ["vat%", "%s", "%(a)s", "%%", 'say "%b"', "a.b", "{a}", "Gr\u00f6\u00dfe %", "two words"]


def test_a_refused_row_is_set_aside_with_columns_of_any_name(postgresql: str) -> None:
    """The statement that sets it aside has parameters, and a % in a name is none: the relay would try without end."""
    name = sql.TableName.parse("odd_names")
    columns = query.SQL(", ").join(map(query.Identifier, ODD))
    with psycopg.connect(postgresql) as connection:
        connection.execute(sql.postgresql(name).encode())
        for column in ODD:
            connection.execute(query.SQL("alter table odd_names add column {} text").format(query.Identifier(column)))
        connection.execute(sql.postgresql(name).encode())  # again, as documented: the other table gets them too
        insert = query.SQL("insert into odd_names (id, aggregatetype, aggregateid, type, {}) values ({})")
        given = [str(uuid.uuid4()), "a", "1", "Changed", *ODD]
        connection.execute(insert.format(columns, query.SQL(", ").join(map(query.Literal, given))))
    with closing(outbox_at(postgresql, "odd_names")) as table:
        table.open()
        table.check_aside()
        [row] = table.take(table.place(), Limits())
        sent = Sent(table.place().incarnation).following([(row.position, row.id)], [row.position])
        table.forget(sent)
        assert table.take(table.place(), Limits()) == []
    with psycopg.connect(postgresql) as connection:
        found = connection.execute(query.SQL("select {} from odd_names_refused").format(columns)).fetchall()
    assert found == [tuple(ODD)]
