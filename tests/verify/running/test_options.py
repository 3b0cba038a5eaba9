"""The options: every mistake at once, before anything is started."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from onceflow.errors import ConfigurationError
from onceflow.verify.engines import ENGINES, EXECUTORS, SUPERVISED
from onceflow.verify.running.options import Options, settings_of
from onceflow.verify.running.schedule import ByTime

GOOD = Options(
    pipeline=None, duration="60s", rate=300, faults="all", seed=7, engine="onceflow", brokers=1, spark_workers=0,
    transaction_version=2, inputs=(), outputs=(), directory=None, arguments=("--for", "60s"),
)  # fmt: skip

SPARKS_OWN = """
name = "p"
[[source]]
name = "orders"
topics = ["orders"]
schema = "struct<id: string>"
[[sink]]
from = "orders"
topic = "out"
value = "id"
"""
BESIDE = """
[[source]]
name = "pays"
pattern = "pay-.*"
format = "raw"
[[sink]]
from = "pays"
topic = "paid"
value = "value"
"""
PATTERN = """
name = "p"
[[source]]
name = "orders"
pattern = "orders-.*"
format = "raw"
[[sink]]
from = "orders"
topic_expr = "'out'"
value = "value"
"""


def mistakes_of(options: Options) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(options)
    return list(caught.value.fields["mistakes"])


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(PATTERN)
    found = mistakes_of(Options(plan, "soon", 0, "drivr", 1, "flink", 2, 1, 3, ("orders",), (), None, standbys=6))
    assert [text.split(":")[0] for text in found] == [
        "--for soon", "--brokers 2", "--spark-workers 1", "--transaction-version 3", "--standbys 6", "--rate 0", "--engine flink",
        "--faults drivr", "--input orders", "source 'orders' reads a pattern", "a sink has a topic_expr",
    ]  # fmt: skip


def test_without_a_standby_none_is_struck() -> None:
    """As `onceflow run` has none unless it is asked for some: what that costs can be measured, too."""
    alone = settings_of(dataclasses.replace(GOOD, faults="driver", standbys=0))
    names = [fault.name for fault in alone.faults]
    assert "kill-driver" in names
    assert not {"kill-standby", "pause-standby"} & set(names)
    (mistake,) = mistakes_of(dataclasses.replace(GOOD, faults="kill-driver,kill-standby", standbys=0))
    assert mistake == "--faults kill-standby: there is no room for it without --standbys 1"


def test_a_plan_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    (found,) = mistakes_of(dataclasses.replace(GOOD, pipeline=tmp_path / "nowhere.toml"))
    assert "nowhere.toml cannot be read: No such file or directory; name a plan, or" in found


def test_a_run_is_held_to_the_goals_where_that_is_asked_for() -> None:
    held = [settings_of(dataclasses.replace(GOOD, held_to_goals=each)).held_to_goals for each in (False, True)]
    assert held == [False, True]


def test_faults_come_one_by_one_where_that_is_asked_for() -> None:
    schedules = [settings_of(dataclasses.replace(GOOD, one_by_one=each)).schedule for each in (False, True)]
    assert [each.text for each in schedules] == ["for 60 s", "for 60 s, one by one"]
    assert schedules == [ByTime(60, 7), ByTime(60, 7, one_by_one=True)]


@pytest.mark.parametrize("duration", ["0s", "0ms", "0h"])
def test_a_run_in_which_no_fault_can_come_is_a_mistake(duration: str) -> None:
    found = mistakes_of(dataclasses.replace(GOOD, duration=duration, rate=0))
    assert [text.split(":")[0] for text in found] == [f"--for {duration}", "--rate 0"]
    assert "more than 0" in found[0]


def test_a_pattern_reads_the_topics_that_there_are_samples_for(tmp_path: Path) -> None:
    plan, sample = tmp_path / "p.toml", tmp_path / "sample.jsonl"
    plan.write_text(PATTERN)
    sample.write_text('{"key": "a", "value": {"id": 1}}\n')
    chosen = dataclasses.replace(GOOD, pipeline=plan, inputs=(f"orders-eu={sample}",), outputs=("out",))
    settings = settings_of(chosen)
    assert settings.topics_in == ("orders-eu",)
    assert settings.topics_out == ("out",)
    assert mistakes_of(dataclasses.replace(chosen, inputs=(f"returns={sample}",)))[0].startswith(
        "source 'orders' reads"
    )


def test_a_topic_that_is_read_cannot_be_output_as_well(tmp_path: Path) -> None:
    """What the writer writes there would be output that nothing in the input leads to: a good pipeline would be violated."""
    plan, sample = tmp_path / "p.toml", tmp_path / "sample.jsonl"
    sample.write_text('{"id": 1}\n')
    plan.write_text(PATTERN)
    chosen = dataclasses.replace(GOOD, pipeline=plan, inputs=(f"orders-eu={sample}",), outputs=("out", "orders-us"))
    told = "source 'orders' reads this topic, so that output and input could not be told apart"
    assert mistakes_of(chosen) == [f"--output orders-us: {told}"]
    plan.write_text(PATTERN.replace('pattern = "orders-.*"', 'topics = ["orders", "more"]'))
    chosen = dataclasses.replace(GOOD, pipeline=plan, outputs=("more",))
    assert mistakes_of(chosen) == [f"--output more: {told}"]
    assert settings_of(dataclasses.replace(chosen, outputs=("orders-us",))).topics_out == ("orders-us",)
    back = PATTERN.replace("topic_expr = \"'out'\"", 'topic = "orders-us"\nfeeds_back = true')
    plan.write_text(back)
    fed = dataclasses.replace(GOOD, pipeline=plan, inputs=(f"orders-eu={sample}",))
    assert mistakes_of(fed) == [f"feeds_back, topic = 'orders-us': {told}"]


UNREAD = """
name = "p"
[[source]]
name = "orders"
topics = ["orders"]
[[source]]
name = "Returns"
topics = ["returns"]
[[transform]]
name = "large"
sql = "SELECT * FROM `orders` WHERE amount > 9"
[[transform]]
name = "unused"
sql = "SELECT * FROM Returns"
[[sink]]
from = "large"
topic = "out"
value = "to_json(struct(*))"
"""


def test_a_source_that_no_sink_reads_is_a_mistake(tmp_path: Path) -> None:
    """It would be written for, and waited for until the run is given up as stuck."""
    plan = tmp_path / "p.toml"
    text = UNREAD.replace("topics =", 'schema = "amount INT"\ntopics =')
    plan.write_text(text)
    told = "source 'Returns' is read by no sink, so what is written for it would never be caught up with: leave it out"
    assert mistakes_of(dataclasses.replace(GOOD, pipeline=plan)) == [told]
    plan.write_text(text.replace("FROM `orders` WHERE", "FROM `orders` JOIN returns r WHERE"))
    assert settings_of(dataclasses.replace(GOOD, pipeline=plan)).topics_in == ("orders", "returns")
    plan.write_text(text.replace('from = "large"', 'from = "unused"'))
    assert [each.split()[1] for each in mistakes_of(dataclasses.replace(GOOD, pipeline=plan))] == ["'orders'"]


def test_executors_write_for_the_engine_of_that_name() -> None:
    (engine,) = settings_of(dataclasses.replace(GOOD, engine="executors")).engines
    assert engine == EXECUTORS
    assert engine.judged
    assert engine.name == ENGINES["onceflow"].name


def test_the_supervisor_of_users_leads_the_engine_of_that_name() -> None:
    (engine,) = settings_of(dataclasses.replace(GOOD, engine="supervised")).engines
    assert (engine, engine.leads, engine.judged, engine.is_ours) == (SUPERVISED, True, True, True)
    mistake = "--standbys 0: --engine supervised is what onceflow run --standbys 1 and more do"
    assert mistakes_of(dataclasses.replace(GOOD, engine="supervised", standbys=0)) == [mistake]


def test_a_supervised_engine_is_spared_what_its_supervisor_decides() -> None:
    """Whether another driver is set to work, and when."""
    theirs = {"stall-driver", "second-driver", "expire-ids-of-zombie"}
    chosen = dataclasses.replace(GOOD, faults="driver,identity")
    own, led = (
        {fault.name for fault in settings_of(dataclasses.replace(chosen, engine=engine)).faults}
        for engine in ("onceflow", "supervised")
    )
    assert own - led == theirs
    assert "kill-driver" in led
    (mistake,) = mistakes_of(dataclasses.replace(GOOD, faults="kill-driver,stall-driver", engine="supervised"))
    assert mistake == "--faults stall-driver: there is no room for it without another --engine than supervised"


def test_a_weaker_guarantee_is_not_verified(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(
        PATTERN.replace('pattern = "orders-.*"', 'topics = ["orders"]').replace(
            "[[source]]", 'guarantee = "at_least_once"\n[[source]]', 1
        )
    )
    found = mistakes_of(dataclasses.replace(GOOD, pipeline=plan, outputs=("out",)))
    assert found == ["guarantee = 'at_least_once': it promises less than what is verified; only exactly_once can hold"]


def test_faults_that_the_world_has_no_room_for_are_left_out() -> None:
    one = {fault.name for fault in settings_of(GOOD).faults}
    three = {fault.name for fault in settings_of(dataclasses.replace(GOOD, brokers=3)).faults}
    assert "kill-coordinator" in three - one
    assert "kill-driver" in one


def test_faults_that_are_asked_for_and_have_no_room_are_a_mistake() -> None:
    """Otherwise nothing of what was asked for would be injected, and the report would say that all is well."""
    found = mistakes_of(dataclasses.replace(GOOD, faults="driver,kill-coordinator,spark"))
    assert found == [
        "--faults kill-coordinator: there is no room for it without --brokers 3",
        "--faults spark: there is no room for it without --spark-workers 2",
    ]
    roomy = settings_of(dataclasses.replace(GOOD, faults="kill-coordinator,spark,none", brokers=3, spark_workers=2))
    assert {fault.name for fault in roomy.faults} >= {"kill-coordinator", "kill-executor"}


@pytest.mark.parametrize("given", ["", " , "])
def test_no_name_at_all_is_no_mix_of_faults(given: str) -> None:
    (found,) = mistakes_of(dataclasses.replace(GOOD, faults=given))
    assert found.startswith("--faults: it names none; give all, a mix (none, driver, ")
    assert "kill-driver-at-step" in found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nonsense", "; it takes all, a mix (none, driver, "),
        ("kill-drivr", ", did you mean kill-driver"),
        ("broker", ", did you mean brokers"),
        ("endtxn", ", did you mean lose-endtxn-answer or late-endtxn?"),
    ],
)
def test_a_fault_that_is_not_there_is_answered_with_those_that_look_like_it(given: str, told: str) -> None:
    (found,) = mistakes_of(dataclasses.replace(GOOD, faults=given))
    assert found.startswith(f"--faults {given}: there is no such fault or mix{told}")


def test_what_is_wrong_with_input_names_the_option_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"value": 1}\n{\n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "latin.jsonl").write_bytes(b'"\xe9"')
    names = ("missing", "broken", "empty", "latin")
    inputs = tuple(f"orders={tmp_path / name}.jsonl" for name in names)
    found = mistakes_of(dataclasses.replace(GOOD, inputs=inputs))
    assert [each.startswith(f"--input {given}: ") for each, given in zip(found, inputs, strict=True)] == [True] * 4
    assert [each.split(".jsonl: ")[1].split(":")[0] for each in found] == [
        "the file cannot be read", "line 2", "the file holds no record; give it one JSON value a line",
        "the file cannot be read",
    ]  # fmt: skip
    assert found[0].endswith("No such file or directory")


def test_what_no_topic_may_be_called_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1\n")
    given = dataclasses.replace(GOOD, inputs=(f"bad name={tmp_path}/in.jsonl",), outputs=("", "also bad", "good"))
    assert [text for text in mistakes_of(given) if "may be called" in text] == [
        "--output : no topic may be called so",
        "--output also bad: no topic may be called so",
        f"--input bad name={tmp_path}/in.jsonl: no topic may be called 'bad name'",
    ]


def test_a_schema_that_no_values_can_be_made_of_is_a_mistake_unless_there_is_a_sample(tmp_path: Path) -> None:
    plan, sample = tmp_path / "p.toml", tmp_path / "in.jsonl"
    plan.write_text(SPARKS_OWN)
    sample.write_text('{"id": "1"}\n')
    asked = dataclasses.replace(GOOD, pipeline=plan)
    (mistake,) = mistakes_of(asked)
    assert mistake.startswith("source 'orders': schema: '<' is not a name")
    assert mistake.endswith("or give records of its own with --input")
    assert settings_of(dataclasses.replace(asked, inputs=(f"orders={sample}",))).samples


def test_a_topic_that_nobody_reads_is_a_mistake_also_beside_a_pattern(tmp_path: Path) -> None:
    """The records that were meant for orders would be nowhere, and values made up would be there in their place."""
    plan, sample = tmp_path / "p.toml", tmp_path / "in.jsonl"
    plan.write_text(SPARKS_OWN.replace("struct<id: string>", "id STRING") + BESIDE)
    sample.write_text('{"id": "1"}\n')
    given = dataclasses.replace(GOOD, pipeline=plan, inputs=(f"order={sample}", f"pay-eu={sample}"))
    assert mistakes_of(given) == ["--input order=...: no source reads this topic; they read orders, what fits pay-.*"]
    right = settings_of(dataclasses.replace(given, inputs=(f"orders={sample}", f"pay-eu={sample}")))
    assert right.topics_in == ("orders", "pay-eu")


def test_a_topic_has_one_file(tmp_path: Path) -> None:
    """The second would silently be the one that counts, and the topic that was meant would have none."""
    given = []
    for name in ("a", "b"):
        (tmp_path / name).write_text('{"id": 1}\n')
        given.append(f"payments={tmp_path / name}")
    found = mistakes_of(dataclasses.replace(GOOD, inputs=tuple(given)))
    assert f"--input {given[1]}: payments has a file already" in found
    assert not any(each.startswith(f"--input {given[0]}: payments has") for each in found)


def test_a_file_where_the_files_of_runs_are_to_be_kept_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "files").touch()
    found = mistakes_of(dataclasses.replace(GOOD, directory=tmp_path / "files"))
    assert found == [f"--keep: {tmp_path / 'files'} is a file, not a directory: name another place"]


@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_is_too_long_for_the_files_of_runs_is_a_mistake(length: int) -> None:
    place = Path("x" * length)
    found = mistakes_of(dataclasses.replace(GOOD, directory=place / "files"))
    assert found == [f"--keep: {place / 'files'} is longer than a name can be: name another place"]


def test_what_was_kept_of_an_earlier_run_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    assert settings_of(dataclasses.replace(GOOD, directory=tmp_path)).directory == tmp_path
    found = mistakes_of(dataclasses.replace(GOOD, engine="both", directory=tmp_path))
    assert found == [f"--keep: {tmp_path}/spark holds an earlier run: remove it, or choose another --out"]


def test_proxies_are_only_there_where_a_fault_needs_them() -> None:
    assert settings_of(dataclasses.replace(GOOD, faults="network")).wire
    assert not settings_of(dataclasses.replace(GOOD, faults="driver,disk")).wire


def test_faults_of_readers_come_where_there_are_any() -> None:
    def named(faults: str, readers: int) -> list[str]:
        return [fault.name for fault in settings_of(dataclasses.replace(GOOD, faults=faults, readers=readers)).faults]

    assert named("readers", 2) == ["kill-reader", "pause-reader"]
    assert named("readers", 1) == ["kill-reader"]
    assert {"kill-reader", "pause-reader"} <= set(named("all", 2))
    assert not {"kill-reader", "pause-reader"} & set(named("all", 0))
    room = "there is no room for it without --readers 2"
    for faults, readers in (("readers", 0), ("kill-reader", 0), ("pause-reader", 1)):
        assert mistakes_of(dataclasses.replace(GOOD, faults=faults, readers=readers)) == [f"--faults {faults}: {room}"]
    assert mistakes_of(dataclasses.replace(GOOD, readers=3)) == ["--readers 3: 0 or 1 or 2"]


def test_the_command_runs_the_same_again() -> None:
    assert settings_of(GOOD).command == "onceflow verify --for 60s --seed 7"
    drawn = settings_of(dataclasses.replace(GOOD, seed=None))
    assert drawn.command == f"onceflow verify --for 60s --seed {drawn.seed}"


def test_an_engine_of_ones_own_is_a_command_line() -> None:
    (engine,) = settings_of(dataclasses.replace(GOOD, engine="sh my_engine.py")).engines
    assert engine.command == (shutil.which("sh"), "my_engine.py")
    assert engine.judged
    assert mistakes_of(dataclasses.replace(GOOD, engine="a 'b")) == ["--engine a 'b: No closing quotation"]
    assert mistakes_of(dataclasses.replace(GOOD, engine=" ")) == ["--engine  : it names no program"]
    found = mistakes_of(dataclasses.replace(GOOD, engine="/no/such/program -x"))
    assert found == ["--engine /no/such/program -x: there is no program /no/such/program"]


def test_the_files_of_an_engine_are_found_from_its_own_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("engine.sh", "engine.py"):
        (tmp_path / name).touch(mode=0o700)
    (engine,) = settings_of(dataclasses.replace(GOOD, engine="./engine.sh engine.py -x")).engines
    assert engine.command == (str(tmp_path / "engine.sh"), str(tmp_path / "engine.py"), "-x")


def test_a_word_of_an_engine_may_be_longer_than_a_name(tmp_path: Path) -> None:
    words = ["--schema=" + "x" * length for length in (300, 5000)]
    (engine,) = settings_of(dataclasses.replace(GOOD, engine=f"sh {' '.join(words)}")).engines
    assert engine.command == (shutil.which("sh"), *words)


def test_both_engines_are_ours_and_the_control() -> None:
    engines = settings_of(dataclasses.replace(GOOD, engine="both")).engines
    assert [(engine.name, engine.judged) for engine in engines] == [("onceflow", True), ("spark", False)]
