"""A transaction coordinator that others have replaced, and that has not heard of it.

Clients reach it, and no broker follows it. So it answers what needs no new entry of its log, and nothing else: an entry waits for
replicas until the transaction's time is over, and until then anything that would need one is told to come again
(``TransactionMetadata.pendingState``). Left out is what a write that waits has changed in memory already: an epoch that is raised
to abort an open transaction, and a producer id for a transactional id that was not known.
"""

from __future__ import annotations

from onceflow.kafka import codes
from onceflow.transaction.messages import Snapshot
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.requests import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    PRODUCER_FENCED,
    Answer,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Request,
    Together,
)
from onceflow.verify.simulator.scheduler import Scheduler
from onceflow.verify.simulator.transactions import Transactions


class Outdated:
    """What it knew when it was replaced. A write waits for ``patience`` ticks."""

    def __init__(self, replaced: Transactions, scheduler: Scheduler, patience: int) -> None:
        self._transactions = replaced.as_of_now()
        self._scheduler = scheduler
        self._patience = patience
        self._waits_until = 0
        self._version = replaced.version

    @property
    def shown(self) -> Snapshot:
        """What it has to tell."""
        return self._transactions.describe()

    @property
    def in_doubt(self) -> bool:
        """Whether whom it has answered last cannot know that they are the newest (``Transactions.in_doubt``)."""
        return self._transactions.in_doubt

    def tell(self, request: Request) -> Answer | None:
        """The answer; none, where something has to be written down for it."""
        before = self._transactions.copied()
        self._transactions.in_doubt = False
        answer = self._transactions.ask(request)
        needs_entry = _gives_an_epoch(request, answer) or self._transactions.metadata != before
        self._transactions.metadata = before
        if self._scheduler.now < self._waits_until and self._waits_too(request, answer):
            reach("coordinator: who was replaced has something to write down")
            return _asked_again(request)
        if needs_entry:
            reach("coordinator: who was replaced writes nothing down")
            self._waits_until = self._scheduler.now + self._patience
            return None
        reach("coordinator: who was replaced tells what it knows")
        return answer

    def _waits_too(self, request: Request, answer: Answer) -> bool:
        """What is looked at only once nothing is to be written down; EndTxn of version 1 is refused before that."""
        if isinstance(request, EndTransaction) and self._version == 1:
            return answer.code not in (INVALID_PRODUCER_ID_MAPPING.code, PRODUCER_FENCED.code)
        return not isinstance(request, DescribeTransaction)


def _gives_an_epoch(request: Request, answer: Answer) -> bool:
    """That is written down, also if it was given before."""
    return isinstance(request, InitProducerId) and answer.code == codes.NONE


def _asked_again(request: Request) -> Answer:
    if isinstance(request, Together):
        return Answer(parts=(CONCURRENT_TRANSACTIONS,) * len(request.requests))
    return CONCURRENT_TRANSACTIONS
