"""What is mutated: the commit protocol, its words, the record of progress, what becomes of each answer, the producer, where
a query has to begin, in which order each guarantee writes and commits, what keeps the progress while nothing comes, and who may
write at all; and of the encoder its numbers.
"""

from __future__ import annotations

from tests.verify.simulator.mutation.mutants import ENCODER_JUDGES, SPARK_JUDGES, Target

RENEWING = frozenset({"Renewal._run", "Renewal._between_s", "Renewal._look", "longest_rest_s", "retention_s"})
"""All but its thread: unit tests that wait for threads are no quick judges of what may keep one from ending."""
WHO_MAY_WRITE = frozenset({"_refuse_second_attempt", "_Write.__call__"})
"""What else is in the file takes Spark, or Kafka, to judge."""
STAGE_RETRIES = frozenset({"refusing_stage_retries", "_tagged", "_await_status", "_is_over", "_last_stage_run_again"})
"""What keeps a write from being committed that may have been made twice. The rest is what Spark's JVM is asked for."""

TARGETS = (
    Target("src/onceflow/transaction/protocol.py"),
    Target("src/onceflow/transaction/progress.py"),
    Target("src/onceflow/transaction/messages.py"),
    Target("src/onceflow/transaction/coordinator.py"),
    Target("src/onceflow/transaction/questions.py"),
    Target("src/onceflow/transaction/asking.py"),
    Target("src/onceflow/transaction/requests.py"),
    Target("src/onceflow/transaction/talk.py"),
    Target("src/onceflow/transaction/enrolling.py"),
    Target("src/onceflow/transaction/led.py"),
    Target("src/onceflow/transaction/lane.py"),
    Target("src/onceflow/transaction/producing.py"),
    Target("src/onceflow/transaction/going_on.py"),
    Target("src/onceflow/transaction/delivery.py"),
    Target("src/onceflow/transaction/resuming.py"),
    Target("src/onceflow/transaction/source_ends.py"),
    Target("src/onceflow/transaction/source_mark.py"),
    Target("src/onceflow/transaction/renewing.py", RENEWING),
    Target("src/onceflow/transaction/once_a_batch.py"),
    Target("src/onceflow/transaction/executor_path.py", WHO_MAY_WRITE),
    Target("src/onceflow/kafka/codes.py"),
    Target("src/onceflow/transaction/performing.py"),
    Target("src/onceflow/transaction/sink.py"),
    Target("src/onceflow/transaction/varint.py", judges=ENCODER_JUDGES),
    Target("src/onceflow/transaction/driver.py", judges=SPARK_JUDGES),
    Target("src/onceflow/transaction/streaming_query.py", STAGE_RETRIES, judges=SPARK_JUDGES),
)
