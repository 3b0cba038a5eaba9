"""Input that is gone before it was read, or that is another topic's by now: what Spark's source alone makes of it.

A pipeline of ours says so and ends: ``tests/test_pipeline.py`` and ``tests/test_resume_offsets.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.faults.support import TIMEOUT_S, make_anew
from tests.faults.test_checkpoint_refuses import FIRST, SECOND, Output

if TYPE_CHECKING:
    from tests.conftest import Workbench

pytestmark = pytest.mark.faults

OTHERS = [(f"o{number % 5}", str(number)) for number in range(len(FIRST) + 10)]


def take_all(bench: Workbench, topic: str) -> None:
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": bench.broker.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values():
        done.result(TIMEOUT_S)


def test_control_a_query_that_does_not_fail_on_lost_data_passes_over_what_retention_took(bench: Workbench) -> None:
    """The setting that who asks how to get on is told to change; ``onceflow`` refuses it."""
    source, seen = bench.topic(1), Output()
    bench.fill(source, FIRST)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint)
    bench.fill(source, SECOND)
    take_all(bench, source)
    bench.fill(source, OTHERS)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint, failOnDataLoss="false")
    assert seen == Counter(FIRST + OTHERS)


def test_control_a_query_reads_a_topic_that_was_made_anew_from_where_it_was_in_the_old_one(bench: Workbench) -> None:
    """A checkpoint has numbers, and not of which topic: nothing fails, and as many records are lost as were read before."""
    source, seen = bench.topic(1), Output()
    bench.fill(source, FIRST)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint)
    make_anew(bench.broker, source, 1)
    bench.fill(source, OTHERS)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint)
    assert seen == Counter(FIRST + OTHERS[len(FIRST) :])
