"""A topic that is written is deleted, or made anew with fewer partitions, while the pipeline runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.faults.support import delete_topic, make_anew

from onceflow import KafkaSink

if TYPE_CHECKING:
    from tests.conftest import Workbench

    from onceflow.broker import EmbeddedBroker

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(params=["broker", "broker_v1"])
def versioned(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """A broker of each transaction version: on version 1 the coordinator is the first to miss a partition, on 2 a leader."""
    broker: EmbeddedBroker = request.getfixturevalue(request.param)
    return broker


@pytest.mark.parametrize("driver_bytes", [None, 0], ids=["driver", "executors"])
def test_the_next_batch_goes_to_the_partitions_that_there_are(
    bench: Workbench, versioned: EmbeddedBroker, driver_bytes: int | None
) -> None:
    """What is remembered of the topic is of the old one; the attempt that finds no such partition is made again."""
    source, target = bench.topic(1, on=versioned), bench.topic(4, on=versioned)
    servers = versioned.bootstrap_servers
    with closing(KafkaSink(target, name=target, bootstrap_servers=servers, driver_bytes=driver_bytes)) as sink:
        bench.fill(source, [(f"k{number}", "before") for number in range(20)], on=versioned)
        bench.run_query(source, sink, bench.checkpoint, on=versioned)
        assert {record.partition() for record in bench.read(target, on=versioned)} == {0, 1, 2, 3}
        make_anew(versioned, target, 2)
        bench.fill(source, [(f"k{number}", "behind") for number in range(20)], on=versioned)
        bench.run_query(source, sink, bench.checkpoint, on=versioned)
    written = bench.read(target, on=versioned)
    assert sorted(record.key() or b"" for record in written) == sorted(f"k{number}".encode() for number in range(20))
    assert {record.partition() for record in written} == {0, 1}


@pytest.mark.parametrize("driver_bytes", [None, 0], ids=["driver", "executors"])
def test_a_topic_that_is_gone_is_named(bench: Workbench, versioned: EmbeddedBroker, driver_bytes: int | None) -> None:
    """Not the brokers, which run."""
    source, target = bench.topic(1, on=versioned), bench.topic(1, on=versioned)
    servers = versioned.bootstrap_servers
    with closing(KafkaSink(target, name=target, bootstrap_servers=servers, driver_bytes=driver_bytes)) as sink:
        bench.fill(source, [("k", "before")], on=versioned)
        bench.run_query(source, sink, bench.checkpoint, on=versioned)
        delete_topic(versioned, target)
        bench.fill(source, [("k", "behind")], on=versioned)
        with pytest.raises(Exception, match=rf"TOPIC_MISSING.* topic {target} does not exist"):
            bench.run_query(source, sink, bench.checkpoint, on=versioned)
