"""What a step says of the transaction: whether one is open is often known only before a step, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Transaction(StrEnum):
    """Whether a transaction is open, as far as a step tells."""

    NONE = "none"
    PERHAPS = "perhaps"
    OPEN = "open"

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Transaction.NONE: "no transaction open",
    Transaction.PERHAPS: "perhaps a transaction open",
    Transaction.OPEN: "a transaction open",
}


@dataclass(frozen=True, slots=True)
class Around:
    """Right before a step, which is also when it is told; and anywhere within it."""

    before: Transaction
    within: Transaction


UNKNOWN = Around(Transaction.PERHAPS, Transaction.PERHAPS)
NEVER = Around(Transaction.NONE, Transaction.NONE)
OPENS = Around(Transaction.NONE, Transaction.PERHAPS)
ENDS = Around(Transaction.OPEN, Transaction.PERHAPS)
THROUGHOUT = Around(Transaction.OPEN, Transaction.OPEN)


def most(found: list[Transaction]) -> Transaction:
    """The most that is known of several moments: one at which it was open is enough."""
    return max(found, key=list(Transaction).index, default=Transaction.NONE)
