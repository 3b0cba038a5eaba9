"""Effects of readers behind the output, on tables: each way in which they can be wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.verify.oracle.tables import Out, Tables, outputs, table

from onceflow.verify.checker import check_history, shrink
from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.recording.tables import EFFECTS

Effects = list[Out]


def judged(effects: Effects, tables: Tables | None = None, *, handled: bool = True) -> Judgement:
    tables = tables or Tables()
    rows = [("out", each.partition, each.offset, each.content) for each in effects]
    return judge(replace(tables.recorded(), effects=table(EFFECTS, rows), handled=handled), tables.expected())


def test_one_effect_for_each_record_is_good() -> None:
    without = judge(Tables().recorded(), Tables().expected())
    judgement = judged(outputs())
    assert (judgement.violations, judgement.reasons, judgement.unproved) == ({}, (), "")
    assert judgement.not_judged == without.not_judged, "effects leave no part of the history in doubt"
    assert {"effect_repeated", "effect_missing"} <= {check.anomaly for check in judgement.checks}
    assert not {"effect_repeated", "effect_missing"} & {check.anomaly for check in without.checks}


def test_in_whatever_order_they_came() -> None:
    assert judged(outputs()[::-1]).violations == {}


def twice(effects: Effects) -> None:
    effects.append(effects[4])


def never(effects: Effects) -> None:
    del effects[4]


def never_the_last_one_of_a_batch(effects: Effects) -> None:
    del effects[2]


def none_of_a_topic(effects: Effects) -> None:
    effects.clear()


def of_what_is_not_in_the_log(effects: Effects) -> None:
    """An aborted record, say: at its offset no reader of committed records finds anything."""
    effects.insert(3, replace(effects[2], offset=effects[2].offset + 1))


def of_another_content(effects: Effects) -> None:
    effects[4] = replace(effects[4], content=-4)


def of_a_partition_that_is_not_there(effects: Effects) -> None:
    effects.append(replace(effects[4], partition=7))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (twice, {"effect_repeated": 1}),
        (never, {"effect_missing": 1}),
        (never_the_last_one_of_a_batch, {"effect_missing": 1}),
        (none_of_a_topic, {"effect_missing": len(outputs())}),
        (of_what_is_not_in_the_log, {"phantom": 1}),
        (of_another_content, {"effect_missing": 1, "phantom": 1}),
        (of_a_partition_that_is_not_there, {"phantom": 1}),
    ],
)
def test_what_is_wrong_is_named(spoil: Callable[[Effects], None], found: dict[str, int]) -> None:
    effects = outputs()
    spoil(effects)
    judgement = judged(effects)
    assert judgement.violations == found
    for finding in judgement.findings.to_pylist():
        small = shrink(judgement.history, finding)
        assert finding["anomaly"] in check_history(small).violations
        assert len(small) <= 4


def test_what_readers_have_not_done_that_did_not_come_to_the_end_is_not_missing() -> None:
    """What they have done is judged all the same, and so is the log."""
    effects = outputs()
    del effects[4]
    assert judged(effects, handled=False).violations == {}
    assert judged([*effects, effects[1]], handled=False).violations == {"effect_repeated": 1}
    of_another_content(effects)
    assert judged(effects, handled=False).violations == {"phantom": 1}


def test_what_the_pipeline_wrote_twice_has_two_effects() -> None:
    tables = Tables()
    tables.visible.append(replace(tables.visible[1], offset=3))
    assert judged(list(tables.visible), tables).violations == {"duplicated": 1, "effect_repeated": 1}


def test_what_the_pipeline_lost_is_not_held_against_its_readers() -> None:
    tables = Tables()
    tables.visible = [each for each in tables.visible if each.batch != 1]
    lost = len(outputs()) - len(tables.visible)
    assert judged(list(tables.visible), tables).violations == {"unseen": lost}


def test_without_an_expectation_effects_go_by_place() -> None:
    """All records alike: a place is one effect all the same, so a second one is seen, though nothing else is judged."""
    tables = Tables(refused="no oracle")
    tables.visible = [replace(each, content=1) for each in tables.visible]
    assert judged(list(tables.visible), tables).counts["effect_repeated"] == 0
    assert judged([*tables.visible, tables.visible[0]], tables).counts["effect_repeated"] == 1


def test_a_topic_without_output_has_no_effects() -> None:
    tables = Tables(wanted=[], visible=[])
    assert judged([], tables).violations == {}
    assert judged(outputs()[:1], tables).violations == {"phantom": 1}
