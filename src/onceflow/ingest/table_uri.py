"""Names of databases and tables in ``ce_source``, which is a URI (CloudEvents 1.0: a URI-reference).

Ids count within their source, so a source must never change, and no two tables may share one::

    a table is called public.orders, or a%20b
    that may stand in a URI as it is, and so it does

    a table is called "a b", 50% or größe
    what may not stand in a URI is escaped, and every % with it

    a SQLite file has both, "a b" and a%20b
    the same in the path; in the fragment (the table's identity) it is escaped once more: a%20b and a%2520b
"""

from __future__ import annotations

import re
from urllib.parse import quote

_SAFE = "/?:@!$&'()*+,;=~"
_MAY_STAND = re.compile(rf"(?:[\w.{re.escape(_SAFE)}-]|%[0-9A-Fa-f]{{2}})*", re.ASCII)  # RFC 3986: query and fragment


def in_path(name: str) -> str:
    """As it stands in the path (and behind a ``?`` in it in the query)."""
    return name if _may_stand(name) else _escaped(name)


def in_fragment(name: str) -> str:
    """As it stands in the fragment."""
    return name if _may_stand(name) else _escaped(_escaped(name))


def _may_stand(name: str) -> bool:
    return _MAY_STAND.fullmatch(name) is not None


def _escaped(name: str) -> str:
    return quote(name, safe=_SAFE)
