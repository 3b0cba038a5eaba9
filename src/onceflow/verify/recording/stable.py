"""The last stable offset over time: what an open transaction, or one that a dead instance left open, keeps from readers."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.verify.history.coding import Ints, codes_of, dense, plain_numbers
from onceflow.verify.recording.ends import Asker, place_of_group
from onceflow.verify.recording.sampler import Sampler
from onceflow.verify.recording.tables import STABLE, Clock, Place

_EVERY_S = 0.25
_REQUEST_S = 2
_LOOK_S = 2.5  # between looks for partitions that were added; a hold is counted of one that is known within 3 s


class StableWatcher(Sampler):
    """Samples beginning, last stable offset and end of every partition of ``topics`` (``tables.STABLE``) in a thread of its own.

    With ``pipeline``, a plan's name, also those of the partition that keeps its group. What a dead driver leaves open there holds
    up no reader of records, but whoever takes over: the progress is unstable until that transaction ends.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str],
        *,
        pipeline: str | None,
        clock: Clock = time.monotonic,
        every_s: float = _EVERY_S,
    ) -> None:
        super().__init__(STABLE, "the last stable offsets", every_s)
        self._bootstrap_servers = bootstrap_servers
        self._topics = tuple(topics)
        self._pipeline = pipeline
        self._clock = clock

    def watch(self) -> None:
        """Looks for partitions that were added, too."""
        asker = Asker(self._bootstrap_servers, request_s=_REQUEST_S)
        admin = ClusterAdmin(ClusterSettings.of(self._bootstrap_servers), patience_s=_REQUEST_S)
        places: set[Place] = set()
        look_at = 0.0
        while not self.ending.is_set():
            if time.monotonic() >= look_at:
                places |= self._places(admin)
                look_at = time.monotonic() + _LOOK_S
            at_s = self._clock()
            stable = asker.stable(sorted(places))
            answered_s = self._clock()  # where the end that is asked for now is no further on, nothing was held then
            rows = asker.beside(stable).to_pylist()
            self.samples.extend((at_s, *row.values(), answered_s) for row in rows)
            self.ending.wait(self.every_s)

    def _places(self, admin: ClusterAdmin) -> set[Place]:
        known = admin.partitions()
        group = [] if self._pipeline is None else place_of_group(self._pipeline, known)
        return {*group, *((topic, partition) for topic in self._topics for partition in known.get(topic, ()))}


def holds(samples: pa.Table) -> pa.Table:
    """When the last stable offset stood still below the end of the log: topic, partition, stable, began_s, ended_s.

    ``samples`` are those of a watcher. A hold begins with the first sample that shows it and ends with the first that does
    not (or with the last sample of all), so it may have been shorter by two samples, and a gap in the samples counts. So does the
    time that an answer takes::

        10.0 s   a sample shows a hold; the broker freezes
        10.3 s   it is asked again
        12.1 s   it wakes; the transaction ends, and the answer shows no hold: at 10.3 s there was one

    But not the time that the answers take that are asked for behind that of the stable offset::

        297.0 s   brokers are asked for stable offsets; one of three was killed, another one leads its partitions
        299.0 s   they answer; then they are asked for the ends, and then for the beginnings: the killed one is back by then
        303.2 s   all is answered, the end is where the stable offset was: at 299.0 s nothing was held
    """
    if not len(samples):
        return _holds_table(samples, np.empty(0, np.int64), np.empty(0))
    topic, partition = codes_of(samples["topic"])[0], plain_numbers(samples["partition"])
    order = np.lexsort((samples["at_s"].to_numpy(), partition, topic))
    answered_s, stable, end = (samples[name].to_numpy()[order] for name in ("answered_s", "stable", "end"))
    lane, held = dense(topic << 32 | partition)[order], end > stable
    starts = np.flatnonzero(
        np.any([np.diff(each, prepend=-1) != 0 for each in (lane, stable, held.astype(int))], axis=0)
    )
    after = np.append(starts[1:], len(order))
    ends_here = np.append(lane, -1)[after] != lane[starts]
    ended = np.append(answered_s, 0.0)[np.where(ends_here, after - 1, after)]
    return _holds_table(samples, order[starts[held[starts]]], ended[held[starts]])


def _holds_table(samples: pa.Table, rows: Ints, ended: npt.NDArray[np.float64]) -> pa.Table:
    chosen = samples.take(pa.array(rows))
    columns = {name: chosen[name] for name in ("topic", "partition", "stable")}
    return pa.table({**columns, "began_s": chosen["at_s"], "ended_s": pa.array(ended, pa.float64())})
