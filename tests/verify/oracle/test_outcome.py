"""What the judge is told of a run beside its tables."""

from __future__ import annotations

import pyarrow as pa

from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed
from onceflow.verify.engines.catalog import ENGINES, engine_of
from onceflow.verify.recording import Observed
from onceflow.verify.recording.tables import ENDS, PROGRESS
from onceflow.verify.running.outcome import grown_topics, unrecorded_progress, unseen_progress
from onceflow.verify.running.settings import PARTITIONS


def ends(**partitions: int) -> pa.Table:
    rows = [(topic, number, 0, 1, 1) for topic, count in partitions.items() for number in range(count)]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ENDS, strict=True)], schema=ENDS)


def test_a_topic_with_more_partitions_than_it_was_made_with_grew() -> None:
    table = ends(a=PARTITIONS, b=PARTITIONS + 1, input=PARTITIONS + 1)
    assert grown_topics(table, ("a", "b"), 4) == {"b"}


def test_onceflow_commits_its_progress_with_each_batch() -> None:
    without = Observed(ends(a=1), Committed(None, {}))
    assert "3 batches were committed" in unrecorded_progress(ENGINES["onceflow"], without, 3)[0]
    assert unrecorded_progress(ENGINES["onceflow"], without, 0) == []
    assert unrecorded_progress(engine_of("mine"), without, 3) == []
    known = Observed(ends(a=1), Committed(Progress(3, "query", "driver", ()), {}))
    assert unrecorded_progress(ENGINES["onceflow"], known, 3) == []


def test_a_run_whose_progress_nobody_saw_while_it_went_on_proves_nothing() -> None:
    none, one = PROGRESS.empty_table(), pa.Table.from_pylist([{"look": 1}], schema=PROGRESS)
    known = Observed(ends(a=1), Committed(Progress(3, "query", "driver", ()), {}))
    assert "nobody saw the committed progress" in unseen_progress(known, none)[0]
    assert unseen_progress(known, one) == []
    for progress in (None, Progress.empty("driver")):  # another engine; one that came to nothing
        assert unseen_progress(Observed(ends(a=1), Committed(progress, {})), none) == []
