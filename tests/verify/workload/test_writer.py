"""The writer of the input on a real broker: what it says of a transaction is what readers see of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import KafkaException, Producer
from tests.conftest import create_topic

from onceflow.broker import EmbeddedBroker
from onceflow.config import load
from onceflow.verify.recording import observe, read_all
from onceflow.verify.workload import InputWriter, Record, builtin_plan, inputs_for, transactional
from onceflow.verify.workload.transactional import Attempt, Client, Send

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory

RECORDS = 400


def writer(servers: str, topics: tuple[str, ...], **options: object) -> InputWriter:
    """With a name of its own, which is part of the seed: that of a topic says which tests ran before, and one in 200 of them
    aborts no transaction that is in the log already.
    """
    plan = load(builtin_plan(), {}).plan
    inputs = inputs_for(plan, {"payments": topics}, 3)
    given = {"seed": 3, "rate": 100_000, "limit": RECORDS, "most_records": 20, "name": "tested", **options}
    return InputWriter(servers, inputs, **given)  # type: ignore[arg-type]


def ids(table: pa.Table, status: str) -> Counter[str]:
    return Counter(table.filter(pc.equal(table["status"].cast(pa.string()), status))["id"].to_pylist())


def test_what_is_said_to_be_committed_is_visible_and_nothing_else(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    topics = (topic(3), topic(2))
    sent = writer(broker.bootstrap_servers, topics).start().wait()
    assert len(sent) == RECORDS
    ends = observe(broker.bootstrap_servers, topics, "nobody", patience_s=60).ends
    final = read_all(broker.bootstrap_servers, ends)
    assert Counter(final["id"].to_pylist()) == ids(sent, "ok")
    assert RECORDS / 10 < sum(ids(sent, "fail").values()) < RECORDS / 2
    assert not ids(sent, "info")
    places = {row["id"]: (row["topic"], row["partition"], row["offset"]) for row in sent.to_pylist()}
    for row in final.to_pylist():
        assert places[row["id"]] == (row["topic"], row["partition"], row["offset"])


def test_it_ends_when_so_many_are_committed(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    running = writer(broker.bootstrap_servers, (topic(2),), limit=None, committed=RECORDS).start()
    sent = running.wait()
    assert running.counts["ok"] == sum(ids(sent, "ok").values()) == RECORDS
    assert running.counts["fail"] > 0


def test_between_two_transactions_there_is_no_pause_in_which_a_pipeline_would_seem_to_stand_still() -> None:
    slow = InputWriter("127.0.0.1:1", [], seed=1, rate=0.5)
    assert {slow._chance.randint(1, slow._most_records) for _ in range(1000)} == set(range(1, 6)), (
        "10 s of input at most"
    )


def test_who_leaves_with_an_error_does_not_wait_for_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while all of them are killed; they are not started any more."""
    monkeypatch.setattr(transactional, "_DELIVERY_S", 1.0)
    begun, new_producer = threading.Event(), Client._new_producer

    def beginning(client: Client) -> Producer:
        begun.set()
        return new_producer(client)

    monkeypatch.setattr(Client, "_new_producer", beginning)
    running = writer("127.0.0.1:1", ("away",))

    def interrupted() -> None:
        with running:
            assert begun.wait(60)
            raise SystemExit(130)

    with pytest.raises(SystemExit, match="130"):
        interrupted()
    running._thread.join(60)
    assert not running._thread.is_alive()


class Flushed(Producer):
    """Of a cluster that is away, and counts how often it was flushed."""

    flushes = 0

    def flush(self, *timeout: float) -> int:
        self.flushes += 1
        return super().flush(*timeout)


def test_who_is_given_up_does_not_wait_until_all_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional, "_STEP_S", 0.1)
    monkeypatch.setattr(transactional, "_DELIVERY_S", 1.0)
    given_up = threading.Event()
    given_up.set()
    producer, attempt = Flushed({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}), Attempt(0.0)
    producer.produce("away", b"v")
    attempt.add(Send("away", 0, "1", Record(None, b"v")))
    with pytest.raises(KafkaException):
        Client("127.0.0.1:1", "id", ["away"], given_up)._flush(producer, attempt)
    assert producer.flushes == 1
    producer.purge()


def test_aborted_records_are_really_in_the_log(broker: EmbeddedBroker, topic: TopicFactory, read: Reader) -> None:
    name = topic(1)
    sent = writer(broker.bootstrap_servers, (name,)).start().wait()
    failed = sent.filter(pc.equal(sent["status"].cast(pa.string()), "fail"))
    assert 0 < failed["offset"].null_count < len(failed)
    in_the_log = {message.offset() for message in read(name, committed=False)}
    assert set(failed["offset"].drop_null().to_pylist()) <= in_the_log


def test_a_key_has_one_partition(broker: EmbeddedBroker, topic: TopicFactory, read: Reader) -> None:
    name = topic(4)
    writer(broker.bootstrap_servers, (name,), aborted=0.0).start().wait()
    places: dict[object, set[int | None]] = {}
    for message in read(name):
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) > 10
    assert all(len(each) == 1 for each in places.values())


def test_the_rate_is_kept_and_stop_ends_it(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    began = time.monotonic()
    running = writer(broker.bootstrap_servers, (topic(1),), rate=50, limit=None, most_records=5).start()
    _until(lambda: sum(running.counts.values()) >= 20)
    sent = running.stop()
    assert len(sent) == sum(running.counts.values())
    assert len(sent) / 50 < time.monotonic() - began + 1  # not faster than the rate, but for the first transaction


def test_a_writer_that_is_fenced_takes_its_place_again(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    """A foreign producer takes the transactional id; what was open then failed, or its outcome is not known."""
    name = topic(2)
    running = writer(broker.bootstrap_servers, (name,), rate=2000, limit=None, name=name).start()
    for _ in range(3):
        before = running.counts["ok"]
        rival = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"onceflow-verify-{name}"})
        rival.init_transactions(60)
        _until(lambda: running.counts["ok"] > before)  # noqa: B023  called before the loop goes on
    sent = running.stop()
    ends = observe(broker.bootstrap_servers, [name], "nobody", patience_s=60).ends
    assert ends["stable"] == ends["end"]
    visible = Counter(read_all(broker.bootstrap_servers, ends)["id"].to_pylist())
    assert max(visible.values()) == 1
    assert ids(sent, "ok") <= visible
    assert visible <= ids(sent, "ok") + ids(sent, "info")


@pytest.mark.faults
def test_a_killed_broker_costs_nothing_but_time(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, heap_mb=256) as first:
        create_topic(first, "input", 2)
        running = writer(first.bootstrap_servers, ("input",), rate=1000, limit=None).start()
        _until(lambda: running.counts["ok"] > 50)
        first.kill()
        first.start()
        before = running.counts["ok"]
        _until(lambda: running.counts["ok"] > before + 50)
        sent = running.stop()
        ends = observe(first.bootstrap_servers, ["input"], "nobody").ends
        visible = Counter(read_all(first.bootstrap_servers, ends)["id"].to_pylist())
    assert max(visible.values()) == 1
    assert ids(sent, "ok") <= visible
    assert visible <= ids(sent, "ok") + ids(sent, "info")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
