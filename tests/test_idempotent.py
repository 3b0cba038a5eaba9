"""What is written outside of a transaction is one producer's to the brokers, however often it is begun anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.faults.support import make_anew

from onceflow import KafkaSink
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.idempotent import LAST_IDEMPOTENT_EPOCH, IdempotentIdentity
from onceflow.transaction.messages import Identity
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.questions import describe_producers
from onceflow.transaction.requests import Requests
from onceflow.transaction.router import Encoding, TopicRouter

if TYPE_CHECKING:
    from tests.conftest import Workbench

    from onceflow.broker import EmbeddedBroker

FAR_AHEAD = 100


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[KafkaClient]:
    with KafkaClient(ClusterSettings.of(broker.bootstrap_servers, {}).for_protocol()) as opened:
        yield opened


def known(client: KafkaClient, topic: str) -> dict[int, list[Identity]]:
    """What the leaders know of who has written the partitions."""
    partitions = client.topics([topic], refresh=True)[topic].leaders
    leader = partitions[0]
    answer = client.ask(leader, describe_producers({topic: list(partitions)}))
    return {
        part.partition_index: [Identity(each.producer_id, each.producer_epoch) for each in part.active_producers]
        for part in answer.topics[0].partitions
    }


def write(client: KafkaClient, topic: str, identity: Identity) -> None:
    """One record, outside of any transaction."""
    producer = BatchProducer(client, Target(identity, None, 2))
    router = TopicRouter(Encoding(topic, Codec.NONE, 1_600_000_000_000, 0), TopicCatalog(client).find)
    for rows in (router.add(pa.record_batch({"key": ["k"], "value": [f"{identity}"]})), router.flush()):
        for to, chunk in rows:
            producer.submit(to, chunk)
    producer.finish()


@pytest.mark.parametrize(
    ("guarantee", "driver_bytes", "batches"),
    [("at_least_once", None, 6), ("at_least_once", 0, 3), ("at_most_once", None, 3)],
    ids=["at_least_once", "at_least_once, executors", "at_most_once"],
)
def test_all_batches_are_written_under_one_producer_id(
    guarantee: str, driver_bytes: int | None, batches: int, bench: Workbench, client: KafkaClient
) -> None:
    """A leader keeps every id for a day: with one for each batch there are 86,400 of them on a partition and each replica."""
    source, target = bench.topic(1), bench.topic(1)
    bench.fill(source, [("k", str(number)) for number in range(batches)])
    bench.run(source, target, {"guarantee": guarantee, "driver_bytes": driver_bytes}, maxOffsetsPerTrigger=1)
    assert [int(record.value() or b"") for record in bench.read(target)] == list(range(batches))
    (identity,) = known(client, target)[0]
    assert identity.epoch == batches - 1


def test_an_attempt_that_failed_is_made_again_under_the_next_epoch(bench: Workbench, client: KafkaClient) -> None:
    """On partitions that know nothing of the producer, too: the topic was made anew."""
    source, target = bench.topic(1), bench.topic(4)
    servers = bench.broker.bootstrap_servers
    with closing(KafkaSink(target, name=target, bootstrap_servers=servers, guarantee="at_least_once")) as sink:
        bench.fill(source, [(f"k{number}", "before") for number in range(20)])
        bench.run_query(source, sink, bench.checkpoint)
        (before,) = known(client, target)[0]
        make_anew(bench.broker, target, 2)
        bench.fill(source, [(f"k{number}", "behind") for number in range(20)])
        bench.run_query(source, sink, bench.checkpoint)
    assert {record.key() for record in bench.read(target)} == {f"k{number}".encode() for number in range(20)}
    again = [Identity(before.producer_id, before.epoch + 2)]
    assert known(client, target) == {0: again, 1: again}


def test_an_identity_that_a_leader_refuses_is_not_kept(bench: Workbench, client: KafkaClient) -> None:
    """As when the cluster was restored from a backup, and has given the producer id a second time."""
    source, target = bench.topic(1), bench.topic(1)
    servers = bench.broker.bootstrap_servers
    with closing(KafkaSink(target, name=target, bootstrap_servers=servers, guarantee="at_least_once")) as sink:
        bench.fill(source, [("k", "before")])
        bench.run_query(source, sink, bench.checkpoint)
        (ours,) = known(client, target)[0]
        write(client, target, Identity(ours.producer_id, FAR_AHEAD))
        bench.fill(source, [("k", "behind")])
        bench.run_query(source, sink, bench.checkpoint)
    values = [record.value() for record in bench.read(target)]
    assert (values[0], values[-1], len(values)) == (b"before", b"behind", 3)
    _, other = sorted(known(client, target)[0], key=lambda identity: identity.producer_id)
    assert other.producer_id != ours.producer_id


def test_a_broker_takes_every_epoch_up_to_the_last_one(bench: Workbench, client: KafkaClient) -> None:
    """Nobody has asked it for them; and behind the last one there is another producer."""
    target = bench.topic(1)
    asks = Requests(client, target, 2, 60_000).idempotent_identity
    ours = asks()
    given = iter([Identity(ours.producer_id, LAST_IDEMPOTENT_EPOCH - 2), asks()])
    identity = IdempotentIdentity(given.__next__)
    for _ in range(4):
        write(client, target, identity.next())
    assert len(bench.read(target)) == 4
    first, second = sorted(known(client, target)[0], key=lambda identity: identity.epoch, reverse=True)
    assert (first, second.epoch) == (Identity(ours.producer_id, LAST_IDEMPOTENT_EPOCH), 0)
