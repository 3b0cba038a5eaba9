"""What the declared type of a column makes of a value: whether the number 1 and the text '1' may stand in it as two.

Who names rows by such a column, as text, would give two rows one name.
"""

from __future__ import annotations

import sqlite3

_STRICT_SINCE = (3, 37)


def is_strict(connection: sqlite3.Connection, table: str) -> bool:
    """Whether ``table`` of the main database was made STRICT."""
    if sqlite3.sqlite_version_info < _STRICT_SINCE:
        return False
    query = "select strict from pragma_table_list(?) where schema = 'main'"
    return any(strict for (strict,) in connection.execute(query, (table,)))


def keeps_numbers_and_texts_apart(declared: str, *, is_strict: bool) -> bool:
    """Whether a column keeps both 1 and '1' (datatype3.html, 3.1): one without a type, of bytes, or of ANY in a STRICT table;
    in another one ANY is a type like any that SQLite does not know, and makes numbers of what looks like them.
    """
    kind = declared.upper()
    if kind == "ANY":
        return is_strict
    return not kind or ("BLOB" in kind and not any(name in kind for name in ("INT", "CHAR", "CLOB", "TEXT")))
