"""What a cell runs: Kafka's numbers; every mistake at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from onceflow.errors import ConfigurationError
from onceflow.verify.engines import ABORTING, ABORTING_EXECUTORS, ENGINES, EXECUTORS
from onceflow.verify.matrix.cells import CELLS, Who
from onceflow.verify.matrix.schedule import ByProgress
from onceflow.verify.matrix.settings import MatrixOptions, matrix_of, transaction_size
from onceflow.verify.running.settings import QUIET_TRIGGER_MS

GOOD = MatrixOptions(seed=7, arguments=("--matrix", "--messages", "100000"))


def test_it_is_kafkas_matrix() -> None:
    matrix = matrix_of(GOOD)
    assert list(matrix.settings) == list(CELLS)
    for cell, settings in matrix.settings.items():
        assert (settings.messages, settings.brokers, settings.transaction_version) == (100_000, 3, cell.version)
        assert settings.spark_workers == 2
        assert (settings.partitions_in, settings.partitions_out) == (2, 3)
        assert isinstance(settings.schedule, ByProgress)
        assert len(settings.schedule.bounces) == 3
        assert (settings.topics_in, settings.topics_out) == (("matrix-input",), ("matrix-output",))
        assert not settings.wire


def test_the_command_of_a_cell_runs_it_again() -> None:
    commands = [settings.command for settings in matrix_of(GOOD).settings.values()]
    assert commands[0] == "onceflow verify --matrix --messages 100000 --cells hard-brokers-1 --seed 7"
    assert len(set(commands)) == len(CELLS)


def test_small_inputs_have_small_transactions_so_that_something_lies_between_bounces() -> None:
    assert [transaction_size(messages) for messages in (1_000_000, 100_000, 15_000, 3_000)] == [750, 750, 750, 150]


def test_the_pipeline_is_slow_enough_for_every_broker_to_be_bounced_while_it_works() -> None:
    for messages in (3_000, 100_000):
        settings = matrix_of(dataclasses.replace(GOOD, messages=messages)).settings
        seconds = {
            cell.who: each.trigger_ms * messages / transaction_size(messages) / 1000 for cell, each in settings.items()
        }
        assert seconds[Who.BROKERS] == pytest.approx(150, rel=0.01)
        assert {each.trigger_ms for cell, each in settings.items() if cell.who is Who.CLIENTS} == {QUIET_TRIGGER_MS}


def test_a_third_of_our_own_transactions_is_aborted_and_of_others_none() -> None:
    (settings, *_) = matrix_of(dataclasses.replace(GOOD, engine="both")).settings.values()
    assert settings.engines == (ABORTING, ENGINES["spark"])
    matrix = matrix_of(dataclasses.replace(GOOD, engine="executors"))
    assert {settings.engines for settings in matrix.settings.values()} == {(ABORTING_EXECUTORS,)} == {matrix.engines}


def test_a_client_whose_executors_write_is_bounced_at_the_steps_that_it_tells() -> None:
    """The requests of a batch are its tasks' then: who waited for one of the driver's would wait in vain."""
    assert ABORTING_EXECUTORS.steps == EXECUTORS.steps == tuple(s for s in ABORTING.steps if s != "PRODUCE")
    assert ABORTING_EXECUTORS.is_ours
    assert len({each.command for each in (ABORTING, ABORTING_EXECUTORS, EXECUTORS, *ENGINES.values())}) == 5


def test_spark_lives_in_the_driver_s_process_where_that_is_asked_for() -> None:
    matrix = matrix_of(dataclasses.replace(GOOD, spark_workers=0))
    assert matrix.spark_workers == 0
    assert {settings.spark_workers for settings in matrix.settings.values()} == {0}


def test_an_engine_that_starts_its_clients_by_itself_is_not_bounced() -> None:
    with pytest.raises(ConfigurationError) as caught:
        matrix_of(dataclasses.replace(GOOD, engine="supervised"))
    assert caught.value.fields["mistakes"] == (
        "--engine supervised: the matrix starts and ends clients by itself; choose another one",
    )


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "hard-brokers-1" / "onceflow").mkdir(parents=True)
    wrong = MatrixOptions(999, ("hard-brokers-1", "x"), spark_workers=1, directory=tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        matrix_of(wrong)
    assert [text.split(":")[0] for text in caught.value.fields["mistakes"]] == [
        "--messages 999", "--spark-workers 1", "--cells x", "--keep",
    ]  # fmt: skip
