"""The control: ``python -m onceflow.verify.engines.spark PLAN``, the same plan with Spark's own Kafka sink.

What writes is Spark's code alone, ``batch.write.format("kafka")``, as its documentation shows for ``foreachBatch``. It is
at-least-once by design: a batch that was interrupted is written again. Its duplicates are reported and not judged.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.config import PlanFile
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.failures import explain
from onceflow.pipeline.preflight import ClusterCheck, check_plan
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Order, Told
from onceflow.verify.engines.serving import serve

_COLUMNS = ("topic", "key", "value", "headers", "partition")


@dataclass(slots=True)
class BuiltInSink:
    """A function for ``foreachBatch``; ``drain`` waits for the running batch and lets none begin after it."""

    bootstrap_servers: str
    conversation: Conversation
    running: threading.Lock = field(default_factory=threading.Lock)
    draining: bool = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self.running:
            if self.draining:
                raise RuntimeError(f"the control ends; batch {batch_id} was not begun")
            self.conversation.step("WRITE", batch_id)
            self._write(batch)
            self.conversation.step("WRITTEN", batch_id)
            self.conversation.tell(Message(Told.COMMITTED, batch=batch_id))
            self.conversation.step("COMMITTED", batch_id)

    def _write(self, batch: DataFrame) -> None:
        columns = [name for name in _COLUMNS if name in batch.columns]
        writer = batch.select(*columns).write.format("kafka").option("includeHeaders", "true")
        writer.option("kafka.bootstrap.servers", self.bootstrap_servers).save()

    def drain(self) -> None:
        self.draining = True
        with self.running:
            pass


def run_plan(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Knows no ``resume``: there is no committed progress to resume from."""
    assert file.plan.kafka.bootstrap_servers is not None
    settings = ClusterSettings.of(file.plan.kafka.bootstrap_servers)
    frame = check_plan(file, SparkSession.active(), settings, ClusterCheck(), {})
    sink = BuiltInSink(settings.bootstrap_servers, conversation)
    query = _start(file, frame, sink)
    conversation.tell(Message(Told.STARTED))
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        sink.drain()
        query.stop()

    conversation.on_stop(stop)
    try:
        query.awaitTermination()
    except Exception as error:
        if not asked.is_set():
            raise explain(error) from error


def _start(file: PlanFile, frame: DataFrame, sink: BuiltInSink) -> StreamingQuery:
    plan = file.plan
    writer = frame.writeStream.foreachBatch(sink).outputMode(plan.output.mode).queryName(plan.name)
    writer = writer.option("checkpointLocation", file.checkpoint)
    if plan.trigger.processing_time is not None:
        writer = writer.trigger(processingTime=f"{plan.trigger.processing_time.ms} milliseconds")
    try:
        return writer.start()
    except Exception as error:
        raise explain(error) from error


if __name__ == "__main__":
    sys.exit(serve(run_plan))
