"""What the pipeline's group has committed, over time: the progress and the offsets of the input, seen at one moment.

At the end of a run they agree, for whoever starts mends what does not. Whether they did all the time only who looks meanwhile can
tell::

    batch 7    its output and its offsets are committed, its progress is not
    a look     progress 7, and the offsets of batch 7                           torn
    batch 7    the driver is killed; its successor commits the progress         whole again

Nor is what was there ever gone::

    batch 6    is committed
    somebody   loses the progress, and not the offsets
    a look     no progress, and the offsets of batch 6                          torn: who starts now would begin a new name
    batch 7    is committed, and its progress with it                           whole again
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC, Committed
from onceflow.transaction.requests import Requests
from onceflow.verify.recording.sampler import Sampler
from onceflow.verify.recording.tables import PROGRESS, Clock

_EVERY_S = 0.25
_ANSWER_S = 2.0  # a transaction that a dead driver left open keeps an answer back, and so does a broker that is frozen


class ProgressWatcher(Sampler):
    """Looks at all that the group of ``pipeline``, a plan's name, has committed (``tables.PROGRESS``), in a thread of its own.

    Each look is one OffsetFetch with ``require_stable`` (KIP-447) for everything: the coordinator answers it from one state of
    the group, and applies a transaction's offsets to that at once. A look that finds a transaction open waits for its end.
    """

    def __init__(
        self, bootstrap_servers: str, pipeline: str, *, clock: Clock = time.monotonic, every_s: float = _EVERY_S
    ) -> None:
        super().__init__(PROGRESS, "the committed progress", every_s)
        self._settings = ClusterSettings.of(bootstrap_servers)
        self._pipeline = pipeline
        self._clock = clock
        self._look = 0
        self._query: str | None = None

    def watch(self) -> None:
        """Each answer becomes a look, from the first one with a progress on: before that a name is new, or another engine's."""
        options = {**self._settings.for_protocol(), "request_timeout_ms": int(_ANSWER_S * 1000)}
        with KafkaClient(options, patience_s=_ANSWER_S) as client:
            requests = Requests(client, self._pipeline, version=1, timeout_ms=0)
            while not self.ending.is_set():
                at_s = self._clock()
                self.samples.extend(self._rows(at_s, requests.read_committed(stable=True)))
                self.ending.wait(self.every_s)

    def _rows(self, at_s: float, found: Committed) -> Iterator[tuple[float, int, str, str, int, int]]:
        if found.progress is not None:
            self._query = found.progress.query_id
        if self._query is None:
            return
        query, self._look = self._query, self._look + 1
        next_batch = 0 if found.progress is None else found.progress.next_batch
        yield at_s, self._look, query, ANCHOR_TOPIC, ANCHOR_PARTITION, next_batch
        for (topic, partition), offset in found.offsets.items():
            yield at_s, self._look, query, topic, partition, offset
