"""How the end of a query is told: an end in order is none of a failure, and a failure is told by what was raised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import Draining, QueryFailed
from onceflow.pipeline.failures import reason_of
from onceflow.pipeline.runner import _Run

BY_SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:
py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/somewhere/py4j/clientserver.py", line 617, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/somewhere/pyspark/sql/utils.py", line 120, in call
    raise e
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/somewhere/pyspark/sql/utils.py", line 120, in call
    raise e
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


def test_what_a_batch_raised_is_told_and_not_that_python_has_raised() -> None:
    assert reason_of(RuntimeError(BY_SPARK.format(raised="KeyError: 'total'"))) == "KeyError: 'total'"
    cut_off = (
        "Caused by: X: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):"
    )
    assert reason_of(RuntimeError(cut_off)) == cut_off


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_batch_that_is_refused_while_the_query_is_asked_how_it_ended_is_no_failure(*, is_in_order: bool) -> None:
    """The sink drains; Spark begins one more batch at the very moment at which the run looks whether anything has failed."""
    batch = SimpleNamespace(error=None, newest=7)

    def exception() -> Exception:
        batch.error = Draining("batch 8 was not begun") if is_in_order else KeyError("total")
        return RuntimeError(BY_SPARK.format(raised="onceflow.errors.Draining: batch 8 was not begun"))

    run: Any = object.__new__(_Run)
    run._batch, run._told = batch, 7
    run._file = SimpleNamespace(plan=SimpleNamespace(guarantee="exactly_once"))
    if is_in_order:
        run._raise_failure(SimpleNamespace(exception=exception))
    else:
        with pytest.raises((QueryFailed, KeyError), match="total"):
            run._raise_failure(SimpleNamespace(exception=exception))
