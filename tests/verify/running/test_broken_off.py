"""What goes wrong on the way is told as what it is: a run that proves nothing, never a violation, never the end of a report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console
from tests.verify.report.results import run as result
from tests.verify.running.test_options import GOOD
from typer.testing import CliRunner, Result

from onceflow.broker import EmbeddedBroker
from onceflow.cli import shown
from onceflow.cli.main import app
from onceflow.errors import RequestFailed, SetupError, VerificationError
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed
from onceflow.verify.engines import ENGINES, Engine
from onceflow.verify.recording import ends, observe, reader
from onceflow.verify.recording.tables import EFFECTS, Place
from onceflow.verify.report import writing
from onceflow.verify.report.summary import exit_status
from onceflow.verify.result import Encounter, RunResult
from onceflow.verify.running import run as running
from onceflow.verify.running import verification
from onceflow.verify.running.options import settings_of
from onceflow.verify.running.outcome import Raw
from onceflow.verify.running.progress import Progress as Shown
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.workload import InputWriter

if TYPE_CHECKING:
    from tests.conftest import Fill, TopicFactory

FILES = {"report.html", "report.json", "junit.xml"}
NOTHING: Any = None
QUIET = Shown(Console(quiet=True))


def one_run(engine: str = "onceflow") -> RunResult:
    return running.run(settings_of(GOOD), ENGINES[engine], QUIET)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@contextmanager
def a_world(*_: object) -> Iterator[Any]:
    yield NOTHING


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SetupError("no port is free"), "[SETUP] no port is free"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (AssertionError("writer does not end"), "AssertionError: writer does not end"),
    ],
)
def test_an_engine_whose_world_cannot_be_made_does_not_take_the_others_report_along(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "KafkaCluster", failing(error))
    ours, control = one_run(), one_run("spark")
    assert [each.failures for each in (ours, control)] == [(told,)] * 2
    assert (ours.judged, control.judged) == (True, False)
    violated = result("append_a_record_again", seed=3)
    assert [exit_status(each) for each in ([violated, control], [result(), control], [ours])] == [1, 0, 2]


def test_what_the_wires_draw_follows_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def no_cluster(*_: object, seed: int, **__: object) -> None:
        drawn.append(seed)
        raise SetupError("enough")

    monkeypatch.setattr(running, "KafkaCluster", no_cluster)
    one_run()
    assert drawn == [GOOD.seed]


def test_a_second_error_does_not_hide_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(settings: object, files: object, world: object, raw: Raw, progress: object) -> None:
        raw.failures.append("[STUCK] no batch for 300 s")
        raise KafkaException("the writer's client failed")

    monkeypatch.setattr(running, "_world", a_world)
    monkeypatch.setattr(running, "_work", work)
    first, second = one_run().failures
    assert first == "[STUCK] no batch for 300 s"
    assert "the writer's client failed" in second


def test_what_was_judged_stays_judged_when_cleaning_up_fails_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def world(*_: object) -> Iterator[Any]:
        yield NOTHING
        raise VerificationError("processes of the group are still there")

    monkeypatch.setattr(running, "_world", world)
    monkeypatch.setattr(running, "_work", lambda *_: None)
    told = "what the run was made of did not end in order: [VERIFICATION] processes of the group are still there"
    # A record that is lost is no violation of a run that broke off, and one of a run that went to its end.
    for judged, status in ((result("drop_a_committed_record", seed=3), 1), (result(), 2)):
        monkeypatch.setattr(running, "outcome", lambda *_, judged=judged: judged)
        found = one_run()
        assert found == replace(judged, weaknesses=(told,))
        assert exit_status([found]) == status


def world_at_its_end(servers: str, topic: str) -> Any:
    """Nothing runs in it, and it has one topic of one partition."""
    kafka = SimpleNamespace(direct_servers=servers, heal=lambda: None)
    driver, plan = SimpleNamespace(close=lambda: None), SimpleNamespace(name="nobody")
    return SimpleNamespace(
        driver=driver, kafka=kafka, topics_in=(topic,), topics_out=(), plan=plan, timeline=Timeline(), readers=None,
        made={topic: 1},
    )  # fmt: skip


@pytest.mark.parametrize(("blind", "weaknesses"), [(False, 0), (True, 1)])
def test_a_run_beside_which_nobody_saw_anything_proves_nothing(
    broker: EmbeddedBroker,
    topic: TopicFactory,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
    *,
    blind: bool,
    weaknesses: int,
) -> None:
    """What was visible for a moment only is looked for in what the reader saw."""
    name, servers = topic(1), broker.bootstrap_servers
    fill(name, [("k", "v")])
    world = world_at_its_end(servers, name)
    monkeypatch.setattr(running, "_SEEN_S", 1.0 if blind else 240.0)
    raw = Raw(ENGINES["onceflow"], world)
    with reader.ReadCommittedRecorder("127.0.0.1:1" if blind else servers, [name]) as beside:
        running._look(world, raw, beside)
    assert len(raw.final) == 1
    assert len(raw.seen) == (0 if blind else 1)
    told = f"the reader beside the run did not come to the end of {name}-0: what it saw proves nothing"
    assert raw.weaknesses == [told] * weaknesses


def test_a_reader_beside_the_run_that_ended_by_itself_takes_nothing_along(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the log was read without it."""
    name = topic(1)
    fill(name, [("k", "v")])
    raw, world = Raw(ENGINES["onceflow"], NOTHING), world_at_its_end(broker.bootstrap_servers, name)
    monkeypatch.setattr(reader, "committed_reader", Mock(side_effect=IndexError("its own reason")))
    monkeypatch.setattr(running, "_SEEN_S", 1.0)
    with reader.ReadCommittedRecorder(broker.bootstrap_servers, [name]) as beside:
        beside._thread.join(60)
        running._look(world, raw, beside)
    assert (len(raw.final), len(raw.seen)) == (1, 0)
    assert raw.failures == ["IndexError: its own reason"]


def test_a_log_that_cannot_be_read_leaves_the_rest_to_be_judged(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill
) -> None:
    name = topic(1)
    fill(name, [("k", "v"), ("k", "w")])
    raw, world = Raw(ENGINES["onceflow"], NOTHING), world_at_its_end(broker.bootstrap_servers, name)
    world.topics_out = (name,)
    whole = observe(broker.bootstrap_servers, [name], "nobody")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(name, 0, 1)]).values():
        done.result(60)
    running._read_log(world, raw, replace(whole, group=whole.ends))
    assert raw.log is None
    (told,) = raw.weaknesses
    assert told.startswith("the attempts of the pipeline are not judged, for its log was not read: [REQUEST_FAILED]")
    raw.weaknesses.clear()
    running._read_log(world, raw, replace(whole, group=None))
    assert (raw.log, raw.weaknesses) == (None, []), "nothing was ever committed"
    progress = Committed(Progress(1, "query", "driver", ()), {})
    running._read_log(world, raw, replace(whole, group=None, committed=progress))
    assert "does not list the partition that keeps the pipeline's group" in raw.weaknesses[0]


@pytest.mark.parametrize("troubles", [[], ["stuck: the readers have not handled all of it"]])
def test_readers_behind_the_output_that_are_stuck_leave_no_doubt_of_the_log(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill, troubles: list[str]
) -> None:
    """What they have not done is not held against them; what the pipeline has lost is."""
    name = topic(1)
    fill(name, [("k", "v")])
    raw, world = Raw(ENGINES["onceflow"], NOTHING), world_at_its_end(broker.bootstrap_servers, name)
    world.readers = SimpleNamespace(finish=lambda *_: troubles, effects=EFFECTS.empty_table)
    with reader.ReadCommittedRecorder(broker.bootstrap_servers, [name]) as beside:
        running._look(world, raw, beside)
    assert (raw.failures, raw.weaknesses, raw.handled) == ([], troubles, not troubles)
    assert raw.effects is not None


@pytest.mark.parametrize(("engine", "told"), [("onceflow", 1), ("spark", 0)])
def test_a_checkpoint_that_is_not_the_committed_one_though_no_fault_made_it_so_is_a_failure(
    engine: str, told: int
) -> None:
    """The next driver resumes, and of a plan without state nothing else would be seen."""
    driver: Any = SimpleNamespace(conflicts=2)
    raw = Raw(ENGINES[engine], NOTHING, encounters=[Encounter("lose-offsets", 1.0, True, "batch 7 in WRITE")])
    failures = running._unexplained_conflicts(driver, raw)
    assert len(failures) == told
    assert all("2 drivers ended with PROGRESS_CONFLICT" in each for each in failures)
    driver.conflicts = 0
    assert running._unexplained_conflicts(driver, raw) == []


def test_behind_an_end_that_nothing_explains_finding_nothing_proves_nothing_and_what_was_lost_is_lost() -> None:
    driver: Any = SimpleNamespace(conflicts=1, unexplained=["the supervisor ended with FENCED"])
    raw = Raw(ENGINES["onceflow"], NOTHING)
    running._note_unexplained_ends(driver, raw)
    conflict, fenced = raw.weaknesses
    assert "PROGRESS_CONFLICT" in conflict
    assert fenced == "the supervisor ended with FENCED"
    assert raw.failures == []


def test_a_run_before_whose_first_fault_a_driver_ends_without_a_reason_goes_on_no_longer() -> None:
    """It would prove nothing."""
    driver = SimpleNamespace(unexplained=list[str]())
    world: Any = SimpleNamespace(driver=driver)
    running._check_undisturbed(world)
    driver.unexplained.append("driver 1 ended with FENCED")
    with pytest.raises(VerificationError, match="before the first fault driver 1 ended with FENCED"):
        running._check_undisturbed(world)


class Listing:
    """A cluster that lists two partitions of each topic."""

    def __init__(self, *_: object) -> None:
        self.direct_servers = "127.0.0.1:1"

    def partitions(self) -> dict[str, tuple[int, ...]]:
        return {"in": (0, 1), "out": (0, 1)}

    def heal(self) -> None:
        pass


@pytest.mark.parametrize(
    ("made", "seen", "told"),
    [
        ({"in": 3, "out": 4}, (), {"rest": "2 of 3 partitions of in", "look": "2 of 3 .* in, 2 of 4 .* out"}),
        ({"in": 2, "out": 2}, (("in", 2),), {"rest": "2 of 3 partitions of in", "look": "2 of 3 partitions of in"}),
    ],
    ids=["made so", "seen since"],
)
def test_a_run_of_which_not_all_is_listed_at_the_end_is_not_judged_by_the_rest(
    made: dict[str, int], seen: tuple[Place, ...], told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the input caught up with by that, nor is that all that there is to be read."""
    monkeypatch.setattr(ends, "ClusterAdmin", Listing)
    monkeypatch.setattr(ends, "PATIENCE_S", 0.0)
    monkeypatch.setattr(running, "observe", partial(observe, patience_s=0.0))
    nothing = SimpleNamespace(close=lambda: None, stop=lambda: None, name="nobody")
    world: Any = SimpleNamespace(
        driver=nothing, kafka=Listing(), spark=None, topics_in=("in",), topics_out=("out",), plan=nothing,
        timeline=Timeline(), made=made,
    )  # fmt: skip
    writer: Any = nothing
    beside = reader.ReadCommittedRecorder("127.0.0.1:1", ["in", "out"])
    beside._position.update(dict.fromkeys(seen, 0))
    with pytest.raises(VerificationError, match=told["rest"]):
        running._rest(world, writer, beside, QUIET)
    with pytest.raises(VerificationError, match=told["look"]):
        running._look(world, Raw(ENGINES["onceflow"], world), beside)


def test_a_run_without_any_fault_though_asked_proves_nothing() -> None:
    for faults, injected, proved in [("driver", 0, False), ("driver", 1, True), ("none", 0, True)]:
        settings = settings_of(replace(GOOD, faults=faults))
        raw = Raw(ENGINES["onceflow"], NOTHING, injected=injected)
        running._check_disturbed(settings, raw)
        assert not raw.failures
        assert raw.weaknesses == ([] if proved else ["no fault was injected within 60 s: give it longer with --for"])


def test_a_run_whose_asked_for_fault_came_in_vain_each_time_proves_nothing() -> None:
    met, vain = (
        Encounter("kill-driver", 3.0, True, "batch 7", batches=1),
        Encounter("lose-endtxn-answer", 5.0, False, "nothing"),
    )
    for faults, proved in [("kill-driver,lose-endtxn-answer", False), ("driver,network", True)]:
        settings = settings_of(replace(GOOD, faults=faults))
        raw = Raw(ENGINES["onceflow"], NOTHING, injected=3, encounters=[met, vain, vain])
        running._check_disturbed(settings, raw)
        assert [each for each in raw.weaknesses if "lose-endtxn-answer" in each] == raw.weaknesses
        assert bool(raw.weaknesses) is not proved


def test_the_reader_beside_the_run_tells_what_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "committed_reader", failing(MemoryError("no memory")))
    recorder = reader.ReadCommittedRecorder("127.0.0.1:1", ["out"]).start()
    with pytest.raises(MemoryError, match="no memory"):
        recorder.stop()


def test_who_is_interrupted_is_not_taken_for_a_run_that_has_failed_where_cleaning_up_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the next engine would begin, and no further signal would be heard."""

    @contextmanager
    def world(*_: object) -> Iterator[Any]:
        try:
            yield NOTHING
        finally:
            raise VerificationError("processes of the group are still there")

    def interrupted(*_: object) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(running, "_world", world)
    monkeypatch.setattr(running, "_work", interrupted)
    with pytest.raises(SystemExit, match="130"):
        one_run()


class InputThatFails(InputWriter):
    """Whose thread has ended by itself, as where no producer can be had."""

    def _write(self) -> None:
        raise RequestFailed("the writer of the input gets no producer")


def test_input_that_ended_by_itself_is_a_failure_of_the_run_and_what_it_sent_is_judged() -> None:
    writer, raw = InputThatFails("127.0.0.1:1", [], seed=1).start(), Raw(ENGINES["onceflow"], NOTHING)
    sent = running._stopped(writer, raw)
    assert (sent.num_rows, raw.failures) == (0, ["[REQUEST_FAILED] the writer of the input gets no producer"])
    assert writer.stop().num_rows == 0, "that is told once"


# The command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in a directory with an earlier report, with ``results`` instead of real runs."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def invoke(results: list[RunResult] | Exception, *arguments: str) -> Result:
        for name in FILES:
            (tmp_path / name).write_text("of an earlier run")
        runs = failing(results) if isinstance(results, Exception) else lambda *_: results
        monkeypatch.setattr(verification, "verify_all", runs)
        return CliRunner().invoke(app, ["verify", "--out", str(tmp_path), *arguments])

    return invoke


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_bug_is_no_violation_and_leaves_no_earlier_report(command: Callable[..., Result], tmp_path: Path) -> None:
    done = command(RuntimeError("a bug"))
    assert done.exit_code == 2
    assert "RuntimeError: a bug" in done.stderr
    assert not files_in(tmp_path)


def test_what_was_found_stays_found_when_a_file_cannot_be_written(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "keep_smallest", failing(OSError(28, "No space left on device")))
    assert command([result("append_a_record_again", seed=3)]).exit_code == 1
    assert files_in(tmp_path) == {*FILES, "history.parquet"}
    assert command([result()]).exit_code == 2


def test_a_report_replaces_the_earlier_one(command: Callable[..., Result], tmp_path: Path) -> None:
    done = command([result("append_a_record_again", seed=3)], "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "report.json").read_text())
    assert "history.parquet" in files_in(tmp_path)
    assert command([result()]).exit_code == 0
    assert files_in(tmp_path) == FILES


def test_a_good_history_is_kept_if_that_is_asked_for(command: Callable[..., Result], tmp_path: Path) -> None:
    """So that others can check the verdict."""
    done = command([result()], "--keep")
    assert done.exit_code == 0
    assert files_in(tmp_path) == FILES | {"history.parquet"}
    assert f"{tmp_path / 'history.parquet'}" in "".join(done.stdout.split())


def test_what_was_kept_before_is_a_mistake_in_the_arguments(command: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "files" / "onceflow").mkdir(parents=True)
    done = command([result()], "--keep")
    assert done.exit_code == 2
    assert "holds an earlier run" in done.stderr


def test_the_same_again_can_be_run_as_it_is_told(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that were kept stay, and are not gone on with."""
    given = ["--for", "60s", "--keep", "--seed", "3", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["onceflow", "verify", *given])
    found = [result("append_a_record_again", seed=3)]
    done = command(found, *given)
    (tmp_path / "files" / "onceflow").mkdir(parents=True)
    assert done.exit_code == 1
    told = next(line for line in done.stdout.splitlines() if line.startswith("the same again: "))
    program, name, *again = shlex.split(told.removeprefix("the same again: "))
    assert (program, name) == ("onceflow", "verify")
    assert command(found, *again).exit_code == 1


def test_a_place_for_the_report_that_is_none_is_a_mistake(command: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command([result()], "--out", str(tmp_path / "file"))
    assert done.exit_code == 2
    assert "--out" in done.stderr
    assert "Traceback" not in done.stderr
    assert f"{tmp_path / 'file'} is a file, not a directory" in done.stderr


def test_a_verification_that_is_ended_keeps_the_runs_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second engine's run, while that works."""
    first = result()

    def run(settings: object, engine: Engine, progress: object) -> RunResult:
        if engine.judged:
            return first
        raise SystemExit(130)

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(verification, "run", run)
    done = CliRunner().invoke(app, ["verify", "--engine", "both", "--out", str(tmp_path)])
    assert done.exit_code == 130
    assert files_in(tmp_path) == FILES
    document = json.loads((tmp_path / "report.json").read_text())
    assert [each["standing"] for each in document["runs"]] == ["good", "control"]
    assert document["runs"][0]["history_rows"] == len(first.verdict.history)
    assert document["runs"][1]["failures"][0] == verification.NOT_RUN
    assert "Spark's Kafka sink, showed nothing that could be used" in document["controls"]


def test_a_report_of_the_matrix_does_not_stay_beside_that_of_a_run(
    command: Callable[..., Result], tmp_path: Path
) -> None:
    for name in ("matrix.html", "matrix.json"):
        (tmp_path / name).write_text("of an earlier matrix")
    assert command([result()]).exit_code == 0
    assert files_in(tmp_path) == FILES


@pytest.mark.parametrize(("found", "status"), [("append_a_record_again", 1), ("", 0)])
def test_a_terminal_that_is_closed_takes_neither_the_report_nor_the_verdict(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, status: int
) -> None:
    class Closed(StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    terminal: Any = shown.Heedless(Closed())
    monkeypatch.setattr(shown, "console_of", lambda **_: Console(file=terminal))
    assert command([result(found, seed=3) if found else result()]).exit_code == status
    assert files_in(tmp_path) == {*FILES, *(["history.parquet", "history-1-duplicated.parquet"] if found else [])}
