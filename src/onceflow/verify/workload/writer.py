"""The writer of the input: transactions of random size over all partitions, of which some are aborted on purpose.

What becomes of each is recorded as a history wants it::

    ok     the commit was answered
    fail   it was aborted, or no commit was ever sent: the producer that takes its place aborts what is open
    info   the commit was sent and its answer did not come; whether anything of it is visible tells

After an error a new producer with the same transactional id takes the old one's place, and what was in doubt is not sent
again: every event has one attempt.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import pyarrow as pa

from onceflow.verify.recording.beside import Beside
from onceflow.verify.recording.tables import SENT, Chunks, Clock
from onceflow.verify.workload.inputs import Inputs
from onceflow.verify.workload.transactional import Attempt, Client

ABORTED = 0.25
MOST_RECORDS = 120  # of 40, brokers had twice the work for the same records, and the pipeline half a processor less
LEAST_RATE = 0.1  # records a second
# Between two transactions: a pipeline without input has no batch, and seems to stand still.
_LONGEST_PAUSE_S = 1 / LEAST_RATE
_BEHIND_S = 2.0  # what a fault kept from being written is caught up with no further than this
_END_S = 300.0


class InputWriter(Beside):
    """Writes ``inputs`` in a thread of its own from ``start`` until ``stop``: until the running transaction is decided then.

    ``rate`` is in records a second, ``aborted`` the share of transactions that are aborted, half of them when everything is
    in the log already; a transaction has up to ``most_records``. ``limit``: ends when so many records were sent;
    ``committed``: when so many were committed. ``name`` is its process in the history and its transactional id.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        inputs: Sequence[Inputs],
        *,
        seed: int,
        rate: float = 500.0,
        aborted: float = ABORTED,
        most_records: int = MOST_RECORDS,
        limit: int | None = None,
        committed: int | None = None,
        name: str = "writer",
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(f"verify-{name}", f"the {name} of the input", _END_S)
        self.name = name
        self._inputs = list(inputs)
        self._given_up = threading.Event()
        topics = [each.topic for each in self._inputs]
        self._client = Client(bootstrap_servers, f"onceflow-verify-{name}", topics, self._given_up)
        self._chance = random.Random(f"{seed}/{name}")  # noqa: S311  repeatable on purpose
        self._rate = rate
        self._aborted = aborted
        self._most_records = max(1, min(most_records, int(rate * _LONGEST_PAUSE_S)))
        self._limit = limit
        self._committed = committed
        self._clock = clock
        self._sent = Chunks(SENT)
        self._transactions = 0
        self.counts = {"ok": 0, "fail": 0, "info": 0}  # records

    def wait(self, timeout_s: float = _END_S) -> pa.Table:
        """Waits until ``limit`` or ``committed`` is reached; gives what was sent. Raises, once, what ended the writer before."""
        return self._ended(timeout_s)

    @property
    def failure(self) -> Exception | None:
        """What ended it, and nobody was told of yet."""
        return self._error

    def table(self) -> pa.Table:
        """What was decided so far (``recording.tables.SENT``)."""
        return self._sent.table()

    def _leave(self) -> None:
        """Unlike one that is stopped it does not decide the running transaction, for which it may need brokers that are away."""
        self._given_up.set()
        super()._leave()

    def _work(self) -> None:
        try:
            self._write()
        finally:
            self._client.close()

    def _write(self) -> None:
        due = time.monotonic()
        while not self.ending.wait(max(0.0, due - time.monotonic())) and (most := self._most()):
            size = min(self._chance.randint(1, self._most_records), most)
            self._record(self._transaction(size))
            due = max(due + size / self._rate, time.monotonic() - _BEHIND_S)

    def _most(self) -> int:
        """How many records the next transaction may have; 0 at the end."""
        sent = sum(self.counts.values())
        left = self._most_records if self._limit is None else self._limit - sent
        return left if self._committed is None else min(left, self._committed - self.counts["ok"])

    def _transaction(self, size: int) -> Attempt:
        attempt = Attempt(self._clock())
        for _ in range(size):
            attempt.add(self._client.placed(*self._chance.choice(self._inputs).next_of(), self._chance))
        draw = self._chance.random()
        if draw >= self._aborted:
            self._client.commit(attempt)
        else:
            self._client.abort(attempt, flushed=draw < self._aborted / 2)
        return attempt

    def _record(self, attempt: Attempt) -> None:
        ended = self._clock()
        self._sent.extend(
            (self.name, self._transactions, attempt.status, each.topic, each.partition, each.offset, each.id,
             attempt.began_s, ended)
            for each in attempt.sends
        )  # fmt: skip
        self._transactions += 1
        self.counts[attempt.status] += len(attempt.sends)
