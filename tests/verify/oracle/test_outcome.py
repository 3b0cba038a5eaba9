"""What the judge is told of a run beside its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.verify.oracle.tables import QUERY, Tables

from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed
from onceflow.verify.engines.catalog import ENGINES, engine_of
from onceflow.verify.oracle import Expected
from onceflow.verify.recording import Observed
from onceflow.verify.recording.tables import ENDS, PROGRESS
from onceflow.verify.result import Encounter
from onceflow.verify.running.outcome import Raw, grown_topics, unrecorded_progress, unseen_progress
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


STRIKES = [
    Encounter("late", 2.0, False, "between two batches"),
    *(Encounter("k", s, True, "WRITE") for s in (5.0, 9.0)),
]
SAW_NOBODY = "nobody saw the committed progress of this query while the run went on"
BEHIND = f"{SAW_NOBODY} behind the first fault that met work"


def unseen(
    *looks: tuple[float, str],
    progress: Progress | None = Progress(3, QUERY, "driver", ()),  # noqa: B008
    strikes: Sequence[Encounter] = STRIKES,
    expected: Expected | None = Tables().expected(),  # noqa: B008
) -> list[str]:
    """What is said of looks at these times, at the progress of these queries."""
    rows = [{"at_s": at_s, "look": number, "query": query} for number, (at_s, query) in enumerate(looks)]
    world: Any = None
    raw = Raw(
        ENGINES["onceflow"], world, encounters=list(strikes), progress=pa.Table.from_pylist(rows, schema=PROGRESS),
        observed=Observed(ends(a=1), Committed(progress, {})),
    )  # fmt: skip
    return [weakness.partition(":")[0] for weakness in unseen_progress(raw, expected)]


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([], [SAW_NOBODY]),
        ([(6.0, QUERY)], [SAW_NOBODY]),
        ([(0.5, ""), (6.0, QUERY)], []),
        ([(0.5, "another query"), (6.0, QUERY)], [SAW_NOBODY]),
        ([(1.0, QUERY), (2.0, QUERY)], [BEHIND]),
        ([(1.0, QUERY), (4.9, QUERY)], [BEHIND]),
        ([(1.0, QUERY), (5.0, QUERY)], []),
        ([(6.0, "another query"), (7.0, "")], [SAW_NOBODY]),
        ([(3.0, QUERY), (4.0, QUERY), (6.0, "another query")], [BEHIND]),
    ],
    ids=[
        "none",
        "the first of all",
        "behind the claim",
        "the first but of others",
        "before any fault",
        "before one that met work",
        "behind it",
        "of others",
        "of others behind it",
    ],
)
def test_a_run_whose_progress_nobody_saw_under_faults_proves_nothing(
    looks: list[tuple[float, str]], told: list[str]
) -> None:
    assert unseen(*looks) == told


def test_where_no_fault_met_work_any_look_is_enough_but_the_first() -> None:
    looks = [(0.2, QUERY), (0.5, QUERY)]
    assert unseen(*looks, strikes=STRIKES[:1]) == []
    assert unseen(*looks, strikes=()) == []
    assert unseen(*looks[:1], strikes=()) == [SAW_NOBODY]
    assert unseen(strikes=()) == [SAW_NOBODY]


def test_looks_that_nobody_could_judge_are_not_asked_for() -> None:
    for progress in (None, Progress.empty("driver")):  # another engine; one that came to nothing
        assert unseen(progress=progress) == []
    assert unseen((1.0, "before a resume"), expected=Tables(whole=True).expected()) == []
    assert unseen((6.0, "any"), expected=None) == []
