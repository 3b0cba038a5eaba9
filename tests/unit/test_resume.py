"""Where a query begins, and why it ended: the parts that need neither Spark nor a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from py4j.protocol import Py4JError

from onceflow.config import Plan
from onceflow.errors import Fenced, InputError, ProgressConflict, TopicMissing
from onceflow.pipeline.checkpoint import CheckpointState
from onceflow.pipeline.failures import QueryFailed, explain
from onceflow.pipeline.resume import continues, starting_offsets
from onceflow.pipeline.topics import topics_of
from onceflow.transaction.committed import Committed
from onceflow.transaction.progress import Progress, SourceOffsets
from onceflow.transaction.resuming import starts_elsewhere
from onceflow.transaction.source_mark import mark_of, why_not_resumed

PROGRESS = Progress(next_batch=5, query_id="q", instance="i", ends=("a", "b"))


def plan(**source: object) -> Plan:
    sources = [{"name": "s", "format": "raw", **source}]
    return Plan.model_validate(
        {"name": "p", "source": sources, "sink": [{"from": "s", "topic": "t", "value": "value"}]}
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, False),
        (CheckpointState("q", 4, 2, {3: "a", 4: "b"}), True),
        (CheckpointState("q", 5, 2, {4: "b", 5: "c"}), True),
        (CheckpointState("q", 4, 2, {3: "a", 4: "planned anew"}), False),
        (CheckpointState("q", 5, 2, {4: "planned anew", 5: "c"}), False),
        (CheckpointState("q", 5, 2, {5: "b"}), False),
        (CheckpointState("q", 3, 2, {3: "a", 4: "b"}), False),
        (CheckpointState("q", 6, 2, {4: "b"}), False),
        (CheckpointState("q", -1, None), False),
        (CheckpointState("other", 4, 2, {4: "b"}), False),
        (CheckpointState("q", 4, 3, {4: "b"}), False),
    ],
)
def test_a_checkpoint_continues_only_its_own_plan_and_progress(state: CheckpointState | None, expected: bool) -> None:
    assert continues(state, PROGRESS, sources=2) is expected


def test_a_resumed_source_starts_at_the_committed_offsets_and_new_partitions_at_their_beginning() -> None:
    committed = Committed(PROGRESS, {("a", 0): 7, ("gone", 0): 1})
    known = {"a": (0, 1), "other": (0,)}
    assert starting_offsets(plan(topics=["a"]), committed, known) == {"s": {"a": {"0": 7, "1": -2}}}
    assert starting_offsets(plan(topics=["other"]), committed, known) == {}, "it is new: the plan says where it starts"


COMMITTED: SourceOffsets = {("a", 0): 7, ("a", 1): 8, ("b", 0): 9}


def elsewhere(initial: SourceOffsets, query_id: str = "another") -> list[str]:
    return starts_elsewhere(PROGRESS, query_id, lambda: initial, COMMITTED)


def test_a_query_that_starts_at_the_committed_offsets_continues_them() -> None:
    assert elsewhere(COMMITTED) == []
    assert elsewhere({**COMMITTED, ("new", 0): 3}) == []


@pytest.mark.parametrize("at", list(COMMITTED))
@pytest.mark.parametrize("offset", [0, 99, None])
def test_every_partition_has_to_start_at_its_committed_offset(at: tuple[str, int], offset: int | None) -> None:
    """Also one that the query does not read at all."""
    initial = {other: found for other, found in {**COMMITTED, at: offset}.items() if found is not None}
    topic, partition = at
    assert elsewhere(initial) == [f"{topic}-{partition} starts at {offset}, committed is {COMMITTED[at]}"]


def test_all_partitions_that_start_elsewhere_are_named_in_order() -> None:
    assert [line.split()[0] for line in elsewhere({})] == ["a-0", "a-1", "b-0"]


@pytest.mark.parametrize("progress", [None, PROGRESS, Progress.empty("i")])
def test_who_continues_its_own_progress_or_has_none_is_not_asked_where_it_starts(progress: Progress | None) -> None:
    def unasked() -> SourceOffsets:
        raise AssertionError("asked where the query starts")

    assert starts_elsewhere(progress, PROGRESS.query_id, unasked, COMMITTED) == []


def test_what_left_the_plan_binds_only_a_query_that_reads_it_again() -> None:
    newest = {("a", 0), ("a", 1)}
    at_the_newest = {at: COMMITTED[at] for at in newest}

    def elsewhere(initial: SourceOffsets) -> list[str]:
        return starts_elsewhere(PROGRESS, "another", lambda: initial, COMMITTED, newest)

    assert elsewhere(at_the_newest) == []
    assert elsewhere(COMMITTED) == []
    assert elsewhere({**at_the_newest, ("b", 0): 0}) == ["b-0 starts at 0, committed is 9"]
    assert elsewhere({("a", 0): 7}) == ["a-1 starts at None, committed is 8"]


def marked(offsets: SourceOffsets, *, agree: bool = True) -> Progress:
    return replace(PROGRESS, sources=f"{mark_of(offsets, agree=agree)} topics")


def test_offsets_that_are_all_there_are_resumed_whatever_else_is_there() -> None:
    newest = {("a", 0): 7, ("a", 1): 8}
    assert why_not_resumed(marked(newest), newest, set(newest)) == ""
    assert why_not_resumed(marked(newest), COMMITTED, set(newest)) == ""
    assert why_not_resumed(marked({}), {}, set()) == "", "a query without Kafka sources"


@pytest.mark.parametrize("found", [{}, {("a", 0): 7}, {("a", 0): 7, ("a", 1): 9}, COMMITTED])
def test_offsets_that_are_gone_or_others_are_not_resumed(found: SourceOffsets) -> None:
    progress = marked({("a", 0): 7, ("a", 1): 8})
    assert "batches up to 4 are committed, but" in why_not_resumed(progress, found, set(found))


def test_readings_that_disagree_are_not_resumed() -> None:
    assert "in batch 4" in why_not_resumed(marked(COMMITTED, agree=False), COMMITTED, set(COMMITTED))


def test_what_an_older_onceflow_committed_is_resumed_unless_nothing_is_there() -> None:
    assert why_not_resumed(PROGRESS, COMMITTED, set()) == ""
    assert "are gone" in why_not_resumed(PROGRESS, {}, set())
    for progress in (None, Progress.empty("i")):
        assert why_not_resumed(progress, {}, set()) == ""


def test_a_pattern_reads_whole_names_and_no_internal_topics() -> None:
    known = {"orders-1": (0,), "orders-12": (0,), "x-orders-1": (0,), "__orders-1": (0,)}
    (source,) = plan(pattern="orders-.|__.*").source
    assert topics_of(source, known) == ["orders-1"]


def failed_with(text: str) -> BaseException:
    return explain(Py4JError(text))


def test_a_malformed_row_is_found_deep_in_a_java_stack_trace() -> None:
    text = "x\n\tat a.b\nCaused by: c: [USER] onceflow: malformed JSON in topic in-1, partition 3, offset 42 SQLSTATE"
    error = failed_with(text)
    assert isinstance(error, InputError)
    assert error.fields == {"topic": "in-1", "partition": 3, "offset": 42}


def test_a_cause_further_down_the_chain_is_found() -> None:
    outer = RuntimeError("the batch failed")
    outer.__cause__ = Py4JError("onceflow: malformed JSON in topic t, partition 0, offset 1")
    assert isinstance(explain(outer), InputError)


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("o.a.k.c.e.UnknownTopicOrPartitionException: x", TopicMissing, "does not exist"),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone", InputError, "deleted before they were read"),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] x", QueryFailed, "another plan"),
        ("first\n\tat a.b.c\nCaused by: java.lang.Boom: the real reason\n\tat d", QueryFailed, "the real reason"),
        ("only this\n\tat a.b.c", QueryFailed, "only this"),
    ],
)
def test_java_errors_become_onceflows_own(text: str, kind: type[Exception], part: str) -> None:
    error = failed_with(text)
    assert isinstance(error, kind)
    assert part in str(error)
    assert "\tat " not in str(error)


def test_onceflows_errors_stay_and_a_conflict_names_the_commands_options() -> None:
    fenced = Fenced("x")
    assert explain(fenced) is fenced
    conflict = explain(ProgressConflict("x", action="y", batch_id=3))
    assert isinstance(conflict, ProgressConflict)
    assert "--resume" in conflict.action
    assert conflict.fields == {"batch_id": 3}


def test_a_bug_is_not_dressed_up() -> None:
    bug = KeyError("x")
    assert explain(bug) is bug
