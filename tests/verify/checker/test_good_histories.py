from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.verify.checker.world import GROUP, World

from onceflow.verify.checker import Evidence, check_history, diverged_output, expand
from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.report import first_findings
from onceflow.verify.history import Columns


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400), partitions=st.integers(1, 4))
def test_a_good_history_is_not_accused(seed: int, steps: int, partitions: int) -> None:
    verdict = check_history(World(seed, partitions).run(steps))
    assert first_findings(verdict) == []


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 300))
def test_output_of_a_good_history_is_f_of_its_input(seed: int, steps: int) -> None:
    world = World(seed, compaction=False)
    evidence = Evidence(Columns.of(world.run(steps)))
    replay = expand(dict(zip(world.inputs, world.outputs, strict=True)))
    for group in (GROUP, None):
        assert (
            diverged_output(evidence, Compared(evidence, replay, world.inputs, world.outputs), group).to_pylist() == []
        )


def test_a_good_history_holds_what_could_be_mistaken() -> None:
    """Else the tests above would prove nothing."""
    rows = World(1).run(3000).to_pylist()
    assert len(rows) > 5000
    assert {row["status"] for row in rows if row["txn"] is not None} == {"ok", "info", "fail"}
    assert {row["kind"] for row in rows} >= {"crash", "subscribe", "gone", "assign", "effect"}
    sent = [(row["key"], row["value"]) for row in rows if row["kind"] == "send"]
    assert len(set(sent)) < len(sent)  # aborted batches were run again with the same values
