"""The tables of an outbox, as SQL: Debezium's columns, a position, and one row in which the relay keeps its place.

*Why the position is assigned by a trigger, after a lock* (PostgreSQL)::

    A inserts a row for order 7, gets position 1 from a column default, and goes on working
    B inserts a row for order 7, gets position 2, commits; the relay sends position 2
    A commits; the relay sends position 1, so order 7 has its events in the wrong order

The trigger takes a lock for the aggregate that is held until commit, and takes the position only then: for one aggregate the
order of positions is the order of commits. PostgreSQL evaluates column defaults before any trigger runs, so a default (identity
columns too) would be a position from before the lock.

*Why there are 1,024 locks and not one for each aggregate*: a transaction that inserts for 100,000 aggregates would fill the lock
table of the whole server. Two aggregates that share a lock wait for each other now and then; nothing else changes.

SQLite has one writer at a time, so the order of rowids is the order of commits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceflow.errors import ConfigurationError

CHANNEL = "onceflow_outbox"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")
_LONGEST = 50  # PostgreSQL cuts names at 63 bytes, and ours get suffixes


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of an outbox table, checked so that it can stand in SQL as it is."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """From ``table`` or ``schema.table``. Raises ConfigurationError unless they are plain lower-case names."""
        schema, _, name = text.rpartition(".")
        parts = [name] if schema == "" and not text.startswith(".") else [schema, name]
        if not all(_NAME.fullmatch(part) for part in parts):
            raise ConfigurationError(
                f"{text!r} is no name for an outbox table",
                action=f"use table or schema.table, of lower-case letters, digits and _, {_LONGEST} at most each",
            )
        return cls(schema or None, name)

    @property
    def aside(self) -> TableName:
        """The table beside it, of the rows that were refused."""
        return TableName(self.schema, f"{self.name}_refused")

    @property
    def relay(self) -> TableName:
        """The table beside it, of the one row in which the relay keeps its place."""
        return TableName(self.schema, f"{self.name}_relay")

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def postgresql(table: TableName, *, notify: bool = True) -> str:
    """The SQL that makes an outbox in PostgreSQL 13 or later; it can run again."""
    text = _POSTGRESQL + (_NOTIFY if notify else _NO_NOTIFY)
    return text.replace("%table%", str(table)).replace("%name%", table.name).replace("%channel%", CHANNEL)


def sqlite(table: TableName) -> str:
    """The SQL that makes an outbox in SQLite; it can run again."""
    return _SQLITE.replace("%table%", str(table))


_POSTGRESQL = """\
-- The outbox: services insert here, in the transaction that changes their own tables, and need the right to INSERT only.
create table if not exists %table% (
    id            uuid         primary key,  -- given by the service, one for each event
    aggregatetype varchar(255) not null,     -- the record goes to the topic outbox.event.<aggregatetype>
    aggregateid   varchar(255) not null,     -- its key
    type          varchar(255) not null,     -- what happened: the header ce_type
    payload       jsonb,                     -- its value; text and bytea can be had as well; null is a tombstone
    inserted_at   timestamptz  not null default clock_timestamp(),
    position      bigint       not null unique
);

-- One row: the relay's place. The relay needs SELECT and DELETE on the outbox, SELECT and UPDATE here.
create table if not exists %table%_relay (
    only_row    boolean primary key default true check (only_row),
    incarnation uuid    not null default gen_random_uuid(),
    name        text,
    instance    text,
    batch       bigint  not null default 0,
    events      bigint  not null default 0,
    sending     bigint  not null default 0
);
insert into %table%_relay default values on conflict do nothing;

-- Rows that cannot be sent, when the relay runs with --refused dead-letter. The relay then needs SELECT and INSERT here.
-- Whole rows go there: it gets the columns that the outbox has got since.
create table if not exists %table%_refused (like %table%);
alter table %table%_refused alter column id drop not null, alter column aggregatetype drop not null,
    alter column aggregateid drop not null, alter column type drop not null;  -- a null is a reason to be refused
do $$
declare each record;
begin
    for each in select attname as name, format_type(atttypid, atttypmod) as kind from pg_attribute as of_outbox
        where attrelid = '%table%'::regclass and attnum > 0 and not attisdropped and not exists (
            select from pg_attribute where attrelid = '%table%_refused'::regclass and not attisdropped
            and attname = of_outbox.attname)
    loop
        execute format('alter table %table%_refused add column %I %s', each.name, each.kind);
    end loop;
end $$;

-- The position is taken when the aggregate's lock is held, which is until commit: positions of an aggregate rise as it commits.
create sequence if not exists %table%_position owned by %table%.position;
create or replace function %table%_number() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_advisory_xact_lock(tg_relid::int, hashtext(new.aggregatetype || '/' || new.aggregateid) & 1023);
    new.position := nextval(format('%I.%I', tg_table_schema, tg_table_name || '_position')::regclass);
    return new;
end $$;
drop trigger if exists %name%_number on %table%;
create trigger %name%_number before insert on %table% for each row execute function %table%_number();
"""

_NOTIFY = """
-- Wakes the relay when a transaction with events commits. Without it the relay looks every second.
create or replace function %table%_notify() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('%channel%', '');
    return null;
end $$;
drop trigger if exists %name%_notify on %table%;
create trigger %name%_notify after insert on %table% for each statement execute function %table%_notify();
"""

_NO_NOTIFY = """
-- The relay looks every second: no transaction with events has to NOTIFY (an outbox that was made for it had a trigger).
drop trigger if exists %name%_notify on %table%;
drop function if exists %table%_notify();
"""

_SQLITE = """\
-- The outbox: services insert here, in the transaction that changes their own tables.
create table if not exists %table% (
    position      integer primary key autoincrement,
    id            text    not null unique,  -- given by the service, one for each event
    aggregatetype text    not null,         -- the record goes to the topic outbox.event.<aggregatetype>
    aggregateid   text    not null,         -- its key
    type          text    not null,         -- what happened: the header ce_type
    payload       blob,                     -- its value, text or bytes; null is a tombstone
    inserted_at   text    not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

-- One row: the relay's place.
create table if not exists %table%_relay (
    only_row    integer primary key default 1 check (only_row = 1),
    incarnation text    not null default (lower(hex(randomblob(16)))),
    name        text,
    instance    text,
    batch       integer not null default 0,
    events      integer not null default 0,
    sending     integer not null default 0
);
insert or ignore into %table%_relay (only_row) values (1);

-- Rows that cannot be sent, when the relay runs with --refused dead-letter. Whole rows: a column that the outbox gets later,
-- this one must get too (the relay says so).
create table if not exists %table%_refused as select * from %table% where false;
"""
