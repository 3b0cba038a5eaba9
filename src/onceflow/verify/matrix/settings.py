"""What a cell runs: Kafka's numbers, for a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceflow.config import Plan, load
from onceflow.errors import ConfigurationError
from onceflow.verify.engines import ABORTING, ABORTING_EXECUTORS, ENGINES, EXECUTORS, Engine
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.matrix.bounces import BounceBroker, BounceClient
from onceflow.verify.matrix.cells import Cell, Who, chosen
from onceflow.verify.matrix.schedule import ByProgress
from onceflow.verify.running.options import SPARK_WORKERS, drawn, engines_named, kept_before, one_of
from onceflow.verify.running.settings import QUIET_TRIGGER_MS, Settings

MESSAGES = 100_000
_LEAST_MESSAGES, _MOST_MESSAGES = 1_000, 10_000_000
BROKERS, WORKERS = 3, 2
_PARTITIONS_IN, _PARTITIONS_OUT = 2, 3
_BOUNCES = 3  # of the client; and each broker once
_TRANSACTION = 750  # messages
_LEAST_TRANSACTIONS = 20
_OFFSETS_PER_MESSAGE = 1.2  # aborted messages and the ends of transactions have offsets, too
_STEP = {Who.CLIENTS: 0.2, Who.BROKERS: 0.05}
_BROKERS_S = 150.0  # the pipeline works for so long, lest it be ready before the last broker was bounced
_STUCK_S = 120.0
_INPUT_TRANSACTIONS = 3  # that are read in one batch, or more of them
_INPUT_RATE = 100_000.0
_PATIENCE_S = 600.0
_LEAST_RATE = 100.0  # messages a second


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """As the command line has them."""

    messages: int = MESSAGES
    cells: Sequence[str] | None = None  # None: all
    engine: str = "onceflow"
    spark_workers: int = WORKERS
    seed: int | None = None
    directory: Path | None = None  # where clusters and checkpoints stay
    arguments: Sequence[str] = ()  # of the command line, without seed and cells


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells that are run, and how each is."""

    messages: int
    seed: int
    spark_workers: int
    engines: tuple[Engine, ...]
    settings: dict[Cell, Settings]


def matrix_of(options: MatrixOptions) -> Matrix:
    """Raises ConfigurationError with every mistake."""
    mistakes: list[str] = []
    if not _LEAST_MESSAGES <= options.messages <= _MOST_MESSAGES:
        mistakes.append(f"--messages {options.messages}: from {_LEAST_MESSAGES} to {_MOST_MESSAGES}")
    one_of("--spark-workers", options.spark_workers, SPARK_WORKERS, mistakes)
    cells, wrong = chosen(options.cells)
    mistakes += wrong
    engines = tuple(_as_kafka_has_it(engine) for engine in engines_named(options.engine, mistakes))
    if any(engine.leads for engine in engines):
        mistakes.append(f"--engine {options.engine}: the matrix starts and ends clients by itself; choose another one")
    for cell in cells:
        mistakes += kept_before(_directory(options, cell), engines)
    if mistakes:
        raise ConfigurationError.of("what is to be verified", mistakes)
    seed = drawn(options.seed)
    settings = {cell: _settings(cell, options, engines, seed) for cell in cells}
    return Matrix(options.messages, seed, options.spark_workers, engines, settings)


def _as_kafka_has_it(engine: Engine) -> Engine:
    """Kafka's copier aborts a third of its transactions and copies their messages again; so does ours."""
    return {ENGINES["onceflow"]: ABORTING, EXECUTORS: ABORTING_EXECUTORS}.get(engine, engine)


def _directory(options: MatrixOptions, cell: Cell) -> Path | None:
    return None if options.directory is None else options.directory / cell.name


def _settings(cell: Cell, options: MatrixOptions, engines: tuple[Engine, ...], seed: int) -> Settings:
    transaction = transaction_size(options.messages)
    bounces = bounces_of(cell)
    return Settings(
        plan=_plan(transaction),
        pipeline=f"matrix, {cell.name}",
        engines=engines,
        faults=bounces[:1],
        mix=(cell.name,),
        seed=seed,
        schedule=ByProgress(
            bounces, _STEP[cell.who], f"onceflow-{seed}-{cell.name}", max(_PATIENCE_S, options.messages / _LEAST_RATE)
        ),
        rate=_INPUT_RATE,
        messages=options.messages,
        most_records=transaction // _INPUT_TRANSACTIONS,
        brokers=BROKERS,
        spark_workers=options.spark_workers,
        transaction_version=cell.version,
        partitions_in=_PARTITIONS_IN,
        partitions_out=_PARTITIONS_OUT,
        trigger_ms=_trigger_ms(cell, options.messages / transaction),
        stuck_s=_STUCK_S,
        directory=_directory(options, cell),
        arguments=(*options.arguments, "--cells", cell.name),
    )


def bounces_of(cell: Cell) -> tuple[Fault, ...]:
    """In their order."""
    if cell.who is Who.BROKERS:
        return tuple(BounceBroker(cell.how, number) for number in range(BROKERS))
    return tuple(BounceClient(cell.how, number) for number in range(_BOUNCES))


def transaction_size(messages: int) -> int:
    """Messages in one: as many as Kafka has, and fewer where there would be too few transactions to bounce anything between."""
    return max(1, min(_TRANSACTION, messages // _LEAST_TRANSACTIONS))


def _trigger_ms(cell: Cell, transactions: float) -> int:
    """A client that is down makes no progress, but a cluster with one broker down does."""
    slow = int(1000 * _BROKERS_S / transactions) if cell.who is Who.BROKERS else 0
    return max(QUIET_TRIGGER_MS, slow)


def _plan(transaction: int) -> Plan:
    plan = load(Path(__file__).with_name("pipeline.toml"), {}).plan
    offsets = round(transaction * _OFFSETS_PER_MESSAGE)
    sources = tuple(each.model_copy(update={"max_offsets_per_trigger": offsets}) for each in plan.source)
    return plan.model_copy(update={"source": sources})
