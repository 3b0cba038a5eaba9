"""Where a query begins, and why it ended: the parts that need neither Spark nor a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from onceflow.config import Plan
from onceflow.errors import Fenced, InputError, OnceflowError, ProgressConflict, QueryFailed, TopicMissing
from onceflow.pipeline.checkpoint import CheckpointState
from onceflow.pipeline.failures import explain, telling_of_a_lost_jvm
from onceflow.pipeline.resume import continues, starting_offsets
from onceflow.pipeline.topics import topics_of
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed

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


@pytest.mark.parametrize(
    ("times", "expected"), [({}, True), ({4: 0}, True), ({4: 9}, True), ({3: 9, 4: 8}, False), ({4: 9, 5: 8}, True)]
)
def test_a_checkpoint_in_which_the_newest_committed_batch_was_planned_again_is_left_where_a_resume_is_asked_for(
    times: dict[int, int], *, expected: bool
) -> None:
    """It might go on; but then nobody would have asked."""
    known = replace(PROGRESS, planned_ms=(7, 9))
    for last in (4, 5):
        state = CheckpointState("q", last, 2, {3: "a", 4: "b", 5: "c"}, planned_ms=times)
        assert continues(state, known, sources=2) is expected
        assert continues(state, PROGRESS, sources=2)


def test_a_resumed_source_starts_at_the_committed_offsets_and_new_partitions_at_their_beginning() -> None:
    committed = Committed(PROGRESS, {("a", 0): 7, ("gone", 0): 1})
    known = {"a": (0, 1), "other": (0,)}
    assert starting_offsets(plan(topics=["a"]), committed, known) == {"s": {"a": {"0": 7, "1": -2}}}
    assert starting_offsets(plan(topics=["other"]), committed, known) == {}, "it is new: the plan says where it starts"


def test_a_pattern_reads_whole_names_and_what_is_not_kafkas_own() -> None:
    known = {"orders-1": (0,), "orders-12": (0,), "x-orders-1": (0,), "__audit": (0,), "__consumer_offsets": (0,)}
    (source,) = plan(pattern="orders-.|__.*").source
    assert topics_of(source, known) == ["__audit", "orders-1"]


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
        (
            "An error occurred while calling o1.x.\n: a.b.Boom: the real reason\n\tat d",
            QueryFailed,
            "] the real reason",
        ),
    ],
)
def test_java_errors_become_onceflows_own(text: str, kind: type[Exception], part: str) -> None:
    error = failed_with(text)
    assert isinstance(error, kind)
    assert part in str(error)
    assert "\tat " not in str(error)


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        Py4JError("An error occurred while calling o55.getResult"),  # which was under way then: no more is told
    ],
)
def test_a_jvm_that_has_died_is_told_however_py4j_says_it(error: Exception) -> None:
    told = explain(error, "nothing of it is visible")
    assert isinstance(told, QueryFailed)
    assert told.message.startswith("Spark's JVM has died or does not answer: ")
    assert told.action == "see what killed it; nothing of it is visible"
    with pytest.raises(QueryFailed, match="JVM has died"), telling_of_a_lost_jvm():
        raised_by("py4j.clientserver", error)


def raised_by(module: str, error: Exception) -> None:
    """As a function of this module raises it."""
    exec("def call(error):\n    raise error", names := {"__name__": module})
    names["call"](error)  # type: ignore[operator]


def test_a_pipe_that_nobody_reads_is_no_jvm_that_has_died() -> None:
    """``onceflow run | head``."""
    with pytest.raises(BrokenPipeError), telling_of_a_lost_jvm():
        raised_by("onceflow.cli.errors", BrokenPipeError(32, "Broken pipe"))


@pytest.mark.parametrize(
    "error",
    [Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: no such method"), KeyError(1)],
)
def test_what_a_living_jvm_refuses_is_not_told_as_its_death(error: Exception) -> None:
    assert "has died" not in str(explain(error))
    with pytest.raises(type(error)) as raised, telling_of_a_lost_jvm():
        raise error
    assert raised.value is error


def test_of_a_batch_that_the_sink_has_done_nobody_is_told_that_it_is_not_visible() -> None:
    assert "batch 7 is committed" in Guarantee.EXACTLY_ONCE.of_a_batch_that_is_done(7)
    assert "batch 7 is written" in Guarantee.AT_MOST_ONCE.of_a_batch_that_is_done(7)


@pytest.mark.parametrize(
    ("guarantee", "part"),
    [
        ("exactly_once", "as a whole or not at all"),
        ("at_most_once", "the rest is lost"),
        ("at_least_once", "writes all of it again"),
    ],
)
def test_what_is_visible_of_a_failed_batch_is_told_as_the_guarantee_has_it(guarantee: str, part: str) -> None:
    """Under two of three guarantees "nothing of it" was not true."""
    visible = Guarantee(guarantee).of_a_batch_that_failed
    assert part in visible
    for text in ("only this", "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone"):
        error = explain(Py4JError(text), visible)
        assert isinstance(error, OnceflowError)
        assert visible in error.action


def test_onceflows_errors_stay_and_a_conflict_names_the_commands_options() -> None:
    fenced = Fenced("x")
    assert explain(fenced) is fenced
    conflict = explain(ProgressConflict("x", action="y", batch_id=3))
    assert isinstance(conflict, ProgressConflict)
    assert "--resume" in conflict.action
    assert conflict.fields == {"batch_id": 3}
    other = ProgressConflict("x", action="use the onceflow version that wrote it")
    assert explain(other) is other, "a resume leads nowhere"


def test_a_bug_is_not_dressed_up() -> None:
    bug = KeyError("x")
    assert explain(bug) is bug
