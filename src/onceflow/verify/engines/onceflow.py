"""The engine under test: ``python -m onceflow.verify.engines.onceflow PLAN``, the same code that ``onceflow run`` runs."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from onceflow.config import PlanFile
from onceflow.pipeline import Control, Mode, run
from onceflow.pipeline.events import Event, Started
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.sink import KafkaSink
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Order, Told
from onceflow.verify.engines.serving import serve


class SteppedSink(KafkaSink):
    """The sink as it is; it also tells what it does, and waits where it is told to."""

    def __init__(
        self, *arguments: Any, conversation: Conversation, on_step: OnStep | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, on_step=on_step or conversation.step, **options)
        self._conversation = conversation

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Called by Spark; between its return and Spark's commit log is a place to be killed at, too."""
        super().__call__(batch, batch_id)
        assert self.last is not None
        written, records = self.last.written, self.last.records
        self._conversation.tell(Message(Told.COMMITTED, batch=batch_id, written=written, records=records))
        self._conversation.step("COMMITTED", batch_id)


def run_plan(
    file: PlanFile,
    order: Order,
    conversation: Conversation,
    on_step: OnStep | None = None,
    driver_bytes: int | None = None,
) -> None:
    """Until it is told to stop; the conversation is told the steps, unless ``on_step`` is. Raises what ends the pipeline.

    ``driver_bytes``: see ``KafkaSink``.
    """
    control = Control()
    conversation.on_stop(lambda: control.stop("asked to stop"))

    def tell(event: Event) -> None:
        if isinstance(event, Started):
            conversation.tell(Message(Told.STARTED))

    make_sink = partial(SteppedSink, conversation=conversation, on_step=on_step, driver_bytes=driver_bytes)
    run(file, tell=tell, control=control, mode=Mode(order.mode), make_sink=make_sink)


if __name__ == "__main__":
    sys.exit(serve(run_plan, fences=True))
