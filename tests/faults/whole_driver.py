"""``python -m tests.faults.whole_driver PLAN STEP``: runs a plan on a Spark of its own, and is killed right before a step.

It takes its JVM along, by SIGKILL to its process group: start it in one of its own. A step of a batch is that of its second one,
so that there is one that it committed itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from onceflow.config import load
from onceflow.pipeline import Control, run
from onceflow.transaction.sink import KafkaSink


def main(plan: str, last: str) -> None:
    begun: set[int] = set()

    def step(name: str, batch_id: int) -> None:
        if name == "WRITE":
            begun.add(batch_id)
        if name == last and len(begun) != 1:
            os.killpg(0, signal.SIGKILL)

    class Mortal(KafkaSink):
        """Between its return and Spark's commit log is a place to be killed at, too."""

        def __call__(self, batch: DataFrame, batch_id: int) -> None:
            super().__call__(batch, batch_id)
            step("COMMITTED", batch_id)

    def make_sink(**options: object) -> KafkaSink:
        return Mortal(on_step=step, **options)  # type: ignore[arg-type]

    run(load(Path(plan), {}), tell=lambda event: None, control=Control(), make_sink=make_sink)


if __name__ == "__main__":
    main(*sys.argv[1:])
