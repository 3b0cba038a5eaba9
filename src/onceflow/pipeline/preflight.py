"""All that can be known to be wrong before a query starts, collected into one error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onceflow.config import PlanFile
from onceflow.errors import KafkaError, TopicMissing
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KAFKA_4_3, KafkaClient
from onceflow.kafka.missing import SURE_S, meant
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.exact_numbers import without_room
from onceflow.pipeline.records import records_of, sink_mistakes
from onceflow.pipeline.spark_settings import misspelled
from onceflow.pipeline.topics import MissingTopic, Partitions, missing_topics, offset_mistakes
from onceflow.pipeline.views import Mistake, Starting, build_views, words_of

MAX_TIMEOUT = "transaction.max.timeout.ms"
RETENTION = "offsets.retention.minutes"
VERIFICATION = "transaction.partition.verification.enable"
LEAST_RETENTION_MINUTES = 7 * 24 * 60  # Kafka's own default
_PATIENCE_S = 10.0


@dataclass(slots=True)
class ClusterCheck:
    """What the cluster says of a plan."""

    known: Partitions = field(default_factory=dict)
    missing: list[MissingTopic] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    error: KafkaError | None = None
    notes: list[str] = field(default_factory=list)


def check_cluster(file: PlanFile, settings: ClusterSettings, admin: ClusterAdmin) -> ClusterCheck:
    """Asks the cluster; raises nothing, so that the rest of the plan can be checked too."""
    found = ClusterCheck(mistakes=[(("kafka", name), text) for name, text in settings.unreadable_files()])
    if found.mistakes:
        return found
    try:
        found.known = admin.partitions()
        broker = admin.broker_settings()
        found.mistakes += _timeout_mistakes(file, broker.get(MAX_TIMEOUT))
        found.notes += _retention_notes(broker.get(RETENTION))
        if file.plan.guarantee != "at_least_once":  # which opens no transaction
            found.notes += _verification_notes(broker.get(VERIFICATION))
        found.missing = missing_topics(file, found.known)
        if found.missing:
            # Raises where one is only hidden from this principal. Those that are made now need no second look.
            sure_s = 0.0 if file.plan.kafka.creates_topics else SURE_S
            admin.missing((entry.topic for entry in found.missing), sure_s=sure_s)
            found.known = admin.partitions()
            found.missing = missing_topics(file, found.known)
    except KafkaError as error:
        found.error = error
        return found
    found.notes += _marker_notes(_newest_metadata_version(settings))
    found.notes += _rounding_notes(file)
    found.mistakes += offset_mistakes(file, found.known)
    return found


def _timeout_mistakes(file: PlanFile, most_ms: str | None) -> list[Mistake]:
    timeout = file.plan.output.transaction_timeout
    if most_ms is None or timeout.ms <= int(most_ms):
        return []
    text = f"{timeout} is above the broker's {MAX_TIMEOUT} ({int(most_ms) // 1000} seconds)"
    return [(("output", "transaction_timeout"), text)]


def _retention_notes(minutes: str | None) -> list[str]:
    """The progress is committed offsets: a cluster may drop them while the pipeline rests."""
    if minutes is None:
        return [
            f"the brokers do not tell how long they keep a pipeline's progress ({RETENTION}): the principal lacks "
            "DESCRIBE_CONFIGS on the cluster. A day is assumed; where they keep it for less, a pipeline that rests loses it"
        ]
    if int(minutes) >= LEAST_RETENTION_MINUTES:
        return []
    return [
        f"the brokers drop a pipeline's progress {minutes} minutes after its last commit ({RETENTION}); if it is not started "
        f"for longer it stops and asks. Set it to {LEAST_RETENTION_MINUTES} (7 days) or more"
    ]


def _verification_notes(enabled: str | None) -> list[str]:
    """KAFKA-14402 (tests/faults/test_hanging_transaction.py). Kafka before 3.6 has no such setting, and does not tell of it."""
    if enabled != "false":
        return []
    return [
        f"the brokers take a transaction's first write unasked ({VERIFICATION} = false): on transaction version 1 offsets that "
        "come late may keep a start from reading the progress. Set it to true, Kafka's default, or raise "
        "transaction.version to 2"
    ]


def _newest_metadata_version(settings: ClusterSettings) -> int:
    """0 where nobody answers: a start does not fail of a note."""
    with suppress(KafkaError), KafkaClient(settings.for_protocol(), patience_s=_PATIENCE_S) as client:
        return client.newest_metadata_version()
    return 0


def _marker_notes(metadata_version: int) -> list[str]:
    """KAFKA-20734 (tests/faults/test_without_a_leader.py)."""
    if metadata_version < KAFKA_4_3:
        return []
    return [
        "the brokers are of Kafka 4.3 or later, where a transaction that is decided while one of its partitions has no leader "
        "does not end there (KAFKA-20734, seen with 4.3.1 and 4.4.0): the next one ends both, and committed records can be lost, "
        "aborted ones seen. Run brokers of Kafka 4.2, or see that no partition's replicas are all down at once; whether a later "
        "release has it mended is not known here"
    ]


def _rounding_notes(file: PlanFile) -> list[str]:
    """Of a decimal with more digits than its type holds a pipeline says so, unless that type is as large as there is one."""
    return [
        file.mistake(
            ("source", index, "schema"),
            f"{kind} leaves no room to see digits behind the point that it does not hold: they are rounded. With one of at most "
            "35 digits such a row is malformed",
        )
        for index, source in enumerate(file.plan.source)
        for kind in without_room(source.schema_ or "")
    ]


def check_plan(
    file: PlanFile, spark: SparkSession, settings: ClusterSettings, cluster: ClusterCheck, starting: Starting
) -> DataFrame:
    """The plan's records as a streaming DataFrame. Raises the one error that names every mistake, the cluster's too.

    A problem of the cluster that stands alone keeps its own kind: BrokerUnreachable, TopicMissing, ...
    """
    views = build_views(spark, file.plan, settings, starting)
    mistakes = [*cluster.mistakes, *_spark_mistakes(file, spark), *views.mistakes, *sink_mistakes(file.plan, views)]
    missing = [] if file.plan.kafka.creates_topics else cluster.missing
    if mistakes:
        mistakes += [(entry.path, f"topic {entry.topic} does not exist") for entry in missing]
        unreachable = [str(cluster.error)] if cluster.error else []
        raise file.error([*file.ordered(mistakes), *unreachable])
    if cluster.error:
        raise cluster.error
    if missing:
        raise _missing_error(file, missing, cluster.known)
    try:
        return records_of(file.plan, views)
    except PySparkException as error:  # each expression is good alone
        raise file.error(
            [f"{file.path.name}: sink: together the sinks cannot be written: {words_of(error)}"]
        ) from error


def _spark_mistakes(file: PlanFile, spark: SparkSession) -> list[Mistake]:
    return [
        (("spark", name), f"has no effect: Spark spells it {right}; so write it in [spark], a variable then follows")
        for name, right in misspelled(spark, file.plan.spark)
    ]


def _missing_error(file: PlanFile, missing: list[MissingTopic], known: Partitions) -> TopicMissing:
    lines = file.ordered([(entry.path, f"topic {entry.topic} does not exist") for entry in missing])
    names = tuple(entry.topic for entry in missing)
    return TopicMissing(
        "topics of the plan are missing:" + "".join(f"\n  - {line}" for line in lines),
        action="create them (kafka-topics.sh --create), correct the names, or set create_topics = true in [kafka]; "
        + meant(names, known),
        topics=names,
    )
