"""Deduplication stores: what of a group was handled, and who owns which partition.

``open_store(url)`` gives the store that a URL names; its ``open(group, retention)`` connects it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from onceflow.errors import ConfigurationError, SetupError
from onceflow.reader.stores.interface import Store
from onceflow.sqlite import FORMS as FILE_FORMS
from onceflow.sqlite import file_of

FORMS = (
    "memory:",
    "sqlite:///relative/path.db",
    "sqlite:////absolute/path.db",
    "postgresql://user@host/database",
    "redis://host:6379/0",
)
DEFAULT = "sqlite:///onceflow-store.db"
"""In the working directory: it needs no server, lasts, and takes effects. Lost with a container, it is missed, not made anew."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")
_SWITCH = {"on": True, "off": False}


def open_store(url: str) -> Store:
    """The store that ``url`` names, not connected yet.

    Raises ConfigurationError for a URL of none of the known forms, and SetupError where the store's client library is missing.
    """
    scheme = _SCHEME.match(url)
    make = _MAKERS.get(scheme[1]) if scheme else None
    if make is None:
        # The rest may hold a password.
        begins = f"it begins with {scheme[0]!r}, which is" if scheme else "it begins with"
        raise ConfigurationError.of("the store's URL", [f"{begins} none of the known forms: {', '.join(FORMS)}"])
    return make(url)


def _memory(_: str) -> Store:
    from onceflow.reader.stores.memory import MemoryStore

    return MemoryStore()


def _sqlite(url: str) -> Store:
    from onceflow.reader.stores.sqlite import SqliteStore

    parts = urlsplit(url)
    path = file_of(url, options=True)
    if not path:
        raise ConfigurationError.of("the store's URL", [f"{url!r} names no file: write {FILE_FORMS}"])
    if path == ":memory:":
        raise ConfigurationError.of(
            "the store's URL", [f"{url!r} would be gone with its connection: write memory: for a store in memory"]
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    foreign_keys = given.pop("foreign_keys", "off")
    if given or foreign_keys not in _SWITCH:
        known = "foreign_keys=on and foreign_keys=off"
        raise ConfigurationError.of(
            "the store's URL", [f"{url!r}: after the ? a SQLite file takes {known}, nothing else"]
        )
    return SqliteStore(path, foreign_keys=_SWITCH[foreign_keys])


def _postgresql(url: str) -> Store:
    try:
        from onceflow.reader.stores.postgresql import PostgresqlStore
    except ModuleNotFoundError as error:
        raise _extra_missing("PostgreSQL", "postgresql") from error
    return PostgresqlStore(url)


def _redis(url: str) -> Store:
    try:
        from onceflow.reader.stores.redis import RedisStore
    except ModuleNotFoundError as error:
        raise _extra_missing("Redis", "redis") from error
    return RedisStore(url)


def _extra_missing(name: str, extra: str) -> SetupError:
    return SetupError(f"the client library for {name} is not installed", action=f"install onceflow[{extra}]")


_MAKERS: dict[str, Callable[[str], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
}
