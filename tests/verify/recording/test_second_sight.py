"""What the reader beside a run is given a second time, from its table to the verdict."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.verify.oracle.tables import Tables

from onceflow.verify.oracle.judging import judge
from onceflow.verify.recording.tables import READ

GOES_BACK = {"nonmonotonic_poll", "int_nonmonotonic_poll"}


def given(reads: pa.Table, *, op: int, content: int | None = None) -> pa.Table:
    """The reads, and after them the first record of the output once more, in a call of its own or in the last one."""
    again = reads.filter(pc.equal(reads["topic"].cast(pa.string()), "out")).slice(0, 1).to_pylist()[0]
    again |= {"op": op, "content": again["content"] if content is None else content}
    return pa.concat_tables([reads, pa.Table.from_pylist([again], READ)])


@pytest.mark.parametrize(("op", "anomaly"), [(11, "nonmonotonic_poll"), (10, "int_nonmonotonic_poll")])
def test_a_reader_that_goes_back_is_accused(op: int, anomaly: str) -> None:
    tables = Tables()
    recorded = tables.recorded()
    good = judge(recorded, tables.expected())
    assert not good.violations
    assert {check.anomaly for check in good.checks} >= GOES_BACK
    back = judge(replace(recorded, seen=given(recorded.seen, op=op)), tables.expected())
    assert back.violations == {anomaly: 1}


def test_a_second_sight_of_something_else_is_accused_of_that_as_well() -> None:
    tables = Tables()
    recorded = tables.recorded()
    other = judge(replace(recorded, seen=given(recorded.seen, op=11, content=-9)), tables.expected())
    assert set(other.violations) == {"nonmonotonic_poll", "inconsistent_offsets", "phantom"}
