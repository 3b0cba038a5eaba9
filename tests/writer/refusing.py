"""An EndTxn whose answer does not come, for tests that look what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceflow.writer.coordination import Transactions


def refuse_commit(patch: pytest.MonkeyPatch, transactions: Transactions, *, is_made: bool) -> None:
    """The next EndTxn is refused, or made and its answer lost; those behind it are answered."""
    ask, refused = transactions._ask, list[bool]()

    def asks(question: Callable[..., object], *arguments: object) -> None:
        if question.__name__ != "commit_transaction" or refused:
            return ask(question, *arguments)
        refused.append(True)
        if is_made:
            ask(question, *arguments)
        raise KafkaException(KafkaError(KafkaError._FENCED, "refused, or the answer was lost"))

    patch.setattr(transactions, "_ask", asks)
