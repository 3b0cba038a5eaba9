"""The headers of a record that a consumer gave, and what happens where nobody can read them.

Kafka takes any bytes as the name of a header, and clients in other languages write them. confluent-kafka decodes names as UTF-8,
and where that fails it gives a list with a hole in it and leaves the error behind::

    message.headers()      called a few times in one place: the interpreter looks for the error, and raises SystemError
    the same, called often, so that CPython (3.11 and later) has specialised the call: nobody looks, and the hole ends the process
    the same record, asked once more: the list with the hole, without an error

So it is called in a way that is always looked at, and once.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

from confluent_kafka import Message

Raw = list[tuple[str, bytes | None]] | None
UNREADABLE = (SystemError, UnicodeDecodeError)
"""What ``raw_headers`` raises of such a record."""

raw_headers: Callable[[Message], Raw] = methodcaller("headers")
"""The headers, None where there are none. Raises one of UNREADABLE; of that record it must not be asked again."""


class HeadersUnreadable(Exception):
    """The name of a header is no UTF-8, and the client reads none of the record's headers then."""

    def __init__(self) -> None:
        super().__init__("the name of one of its headers is no UTF-8, and the client reads none of them then")
