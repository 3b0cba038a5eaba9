"""A topic that is written is deleted and made anew with fewer partitions while the pipeline runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.test_resume_offsets import make_anew

from onceflow import KafkaSink

if TYPE_CHECKING:
    from tests.conftest import Workbench

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.parametrize("driver_bytes", [None, 0], ids=["driver", "executors"])
def test_the_next_batch_goes_to_the_partitions_that_there_are(bench: Workbench, driver_bytes: int | None) -> None:
    """What is remembered of the topic is of the old one; the attempt that finds no such partition is made again."""
    source, target = bench.topic(1), bench.topic(4)
    servers = bench.broker.bootstrap_servers
    with closing(KafkaSink(target, name=target, bootstrap_servers=servers, driver_bytes=driver_bytes)) as sink:
        bench.fill(source, [(f"k{number}", "before") for number in range(20)])
        bench.run_query(source, sink, bench.checkpoint)
        assert {record.partition() for record in bench.read(target)} == {0, 1, 2, 3}
        make_anew(bench.broker, target, 2)
        bench.fill(source, [(f"k{number}", "behind") for number in range(20)])
        bench.run_query(source, sink, bench.checkpoint)
    written = bench.read(target)
    assert sorted(record.key() or b"" for record in written) == sorted(f"k{number}".encode() for number in range(20))
    assert {record.partition() for record in written} == {0, 1}
