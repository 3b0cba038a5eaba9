"""Rows and positions in one transaction: both or neither, by one instance at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import DescribeTransactionsRequest
from tests.faults.support import delete_topic, eventually
from tests.ingest.support import files

from onceflow.broker import EmbeddedBroker
from onceflow.errors import (
    AttemptsExhausted,
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    OnceflowError,
    ProgressConflict,
)
from onceflow.ingest import committer as committer_module
from onceflow.ingest import runner
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import Format
from onceflow.ingest.positions import positions_topic, read_positions
from onceflow.ingest.terms import FOUND, without_note
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.renewing import LONGEST_RETENTION_S

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values)})


def committer(broker: EmbeddedBroker, name: str, **options: object) -> SourceCommitter:
    return SourceCommitter(name, ClusterSettings.of(broker.bootstrap_servers, {}), **options)  # type: ignore[arg-type]


@pytest.fixture(params=["broker", "broker_v1"])
def cluster(request: pytest.FixtureRequest) -> EmbeddedBroker:
    running: EmbeddedBroker = request.getfixturevalue(request.param)
    return running


@pytest.fixture
def target(topic: TopicFactory, cluster: EmbeddedBroker) -> str:
    return topic(2, on=cluster)


def test_the_next_start_finds_the_positions_of_the_last_commit(
    cluster: EmbeddedBroker, target: str, read: Reader
) -> None:
    with committer(cluster, target) as first:
        assert first.start() == {}
        assert first.commit([(target, rows("a", "b")), (target, rows("c"))], {"file": "3", "other": "1"}) == 3
        assert first.commit([(target, rows("d"))], {"file": "4", "other": None}) == 1
    with committer(cluster, target) as second:
        assert second.start() == {"file": "4"}
        assert second.commit([], {"file": "5"}) == 0
        assert second.start() == {"file": "5"}
    assert sorted(str(m.value(), "utf-8") for m in read(target, on=cluster)) == ["a", "b", "c", "d"]  # type: ignore[arg-type]


def test_a_second_instance_fences_the_first(cluster: EmbeddedBroker, target: str, read: Reader) -> None:
    with committer(cluster, target) as first, committer(cluster, target) as second:
        first.start()
        first.commit([(target, rows("a"))], {"file": "1"})
        assert second.start() == {"file": "1"}
        with pytest.raises(Fenced):
            first.commit([(target, rows("b"))], {"file": "2"})
        second.commit([(target, rows("c"))], {"file": "2"})
    assert sorted(m.value() or b"" for m in read(target, on=cluster)) == [b"a", b"c"]


def test_a_look_waits_until_the_commit_before_it_is_complete(
    cluster: EmbeddedBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker writes its markers at once, so its first answer is turned into that of a commit which still waits for them."""
    with committer(cluster, target) as first, committer(cluster, target) as second:
        first.start()
        first.commit([(target, rows("a"))], {"file": "1"})
        assert second.look() == {"file": "1"}
        ask, asked = second._client.ask_coordinator, list[object]()

        def ask_while_it_completes(kind: int, key: str, request: object) -> Any:
            if not isinstance(request, DescribeTransactionsRequest):
                return ask(kind, key, request)
            asked.append(request)
            if len(asked) == 2:
                first.commit([(target, rows("b"))], {"file": "2"})
            answer = ask(kind, key, request)
            if len(asked) == 1:
                answer.transaction_states[0].transaction_state = "PrepareCommit"
            return answer

        monkeypatch.setattr(second._client, "ask_coordinator", ask_while_it_completes)
        assert second.look() == {"file": "2"}
        first.commit([], {})  # nobody was fenced


def test_two_instances_that_do_not_fence_each_other_would_send_twice(
    cluster: EmbeddedBroker, target: str, read: Reader
) -> None:
    """The control: what fences is the name, and these two have different ones."""
    with committer(cluster, target) as first, committer(cluster, f"{target}-too") as second:
        for each in (first, second):
            each.start()
        for each in (first, second):
            each.commit([(target, rows("a"))], {"file": "1"})
    assert [m.value() for m in read(target, on=cluster)] == [b"a", b"a"]


def test_an_instance_that_starts_again_finds_that_another_one_took_over(cluster: EmbeddedBroker, target: str) -> None:
    """Its own progress is older than the positions by then, which is no damage to them."""
    with committer(cluster, target) as first, committer(cluster, target) as second:
        first.start()
        first.commit([(target, rows("a"))], {"file": "1"})
        second.start()
        second.commit([(target, rows("b"))], {"file": "2"})
        with pytest.raises(Fenced):
            first.start()


def test_a_source_that_fails_leaves_nothing_and_the_next_start_goes_on(
    cluster: EmbeddedBroker, target: str, read: Reader
) -> None:
    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield target, rows("lost")
        raise ValueError("the file cannot be read")

    with committer(cluster, target) as source:
        source.start()
        with pytest.raises(ValueError, match="cannot be read"):
            source.commit(failing(), {"file": "1"})
        assert source.start() == {}
        source.commit([(target, rows("a"))], {"file": "1"})
    assert [m.value() for m in read(target, on=cluster)] == [b"a"]


def test_positions_that_were_lost_are_noticed(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as source:
        source.start()
        source.commit([(target, rows("a"))], {"file": "1"})
    delete_topic(cluster, positions_topic("ingest", target))
    with committer(cluster, target) as source, pytest.raises(ProgressConflict, match="are not those"):
        source.start()


def test_kinds_do_not_fence_each_other(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as ingest, committer(cluster, target, kind="outbox") as outbox:
        ingest.start()
        outbox.start()
        ingest.commit([(target, rows("a"))], {"file": "1"})
        outbox.commit([(target, rows("b"))], {"table": "1"})


def test_after_an_error_only_a_start_goes_on(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as source:
        source.start()
        with pytest.raises(OnceflowError) as caught:
            source.commit([("no-such-topic", rows("a"))], {"file": "1"})
        assert not isinstance(caught.value, AttemptsExhausted)
        with pytest.raises(AssertionError, match="start first"):
            source.commit([(target, rows("a"))], {"file": "1"})


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 201])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name"):
        SourceCommitter(name, ClusterSettings.of("127.0.0.1:9"))


def test_positions_whose_progress_the_cluster_has_forgotten(cluster: EmbeddedBroker, target: str, read: Reader) -> None:
    """As it does when nothing was committed for a week; the positions are still there, and the user may vouch for them."""
    with committer(cluster, target) as source:
        source.start()
        source.commit([(target, rows("a"))], {"file": "1"})
    forget_progress(cluster, target)
    with committer(cluster, target) as source, pytest.raises(ProgressConflict, match="has no progress") as caught:
        source.start()
    assert "--trust-positions" in caught.value.action
    with committer(cluster, target, trust_positions=True) as source:
        assert source.start() == {"file": "1"}
        source.commit([(target, rows("b"))], {"file": "2"})
    with committer(cluster, target) as source:
        assert source.start() == {"file": "2"}
    assert sorted(m.value() or b"" for m in read(target, on=cluster)) == [b"a", b"b"]


def test_notes_of_files_that_were_found_bind_nobody(cluster: EmbeddedBroker, target: str, read: Reader) -> None:
    """A name that is run each day on a file which stays empty commits nothing, and its progress is forgotten."""
    with committer(cluster, target) as source:
        source.start()
        source.commit([], {f"{FOUND}1": "app.log"})
    forget_progress(cluster, target)
    with committer(cluster, target) as source:
        assert source.start() == {f"{FOUND}1": "app.log"}
        source.commit([(target, rows("a"))], {f"{FOUND}1": None, "file": "1"})
    with committer(cluster, target) as source:
        assert source.start() == {"file": "1"}
    assert [m.value() for m in read(target, on=cluster)] == [b"a"]


def test_trust_does_not_reach_positions_that_contradict_the_progress(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as source:
        source.start()
        source.commit([(target, rows("a"))], {"file": "1"})
    delete_topic(cluster, positions_topic("ingest", target))
    with committer(cluster, target, trust_positions=True) as source, pytest.raises(ProgressConflict):
        source.start()


def forget_progress(cluster: EmbeddedBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    group = f"onceflow-ingest-{name}"
    admin.delete_consumer_groups([group], request_timeout=60)[group].result(60)


def test_an_ingest_that_finds_nothing_for_days_is_not_forgotten(
    cluster: EmbeddedBroker, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "retention_s", lambda *_: 0.004)
    path = tmp_path / "a.jsonl"
    path.write_text("1\n")
    with committer(cluster, target) as source, ThreadPoolExecutor() as background:
        ingest = runner.Ingest(target, target, files(path, Format.JSONL))
        done = background.submit(ingest.run, source, follow=True)
        try:
            eventually(lambda: source._positions is not None or done.done(), bool, "the ingest starts")
            eventually(lambda: source._progress.next_batch, lambda batch: batch > 3, "commits of nothing")
        finally:
            ingest.stop()
        assert done.result(60) == 1
    with committer(cluster, target) as source:
        assert len(without_note(source.start())) == 1


def test_nothing_is_committed_before_a_quarter_of_the_retention_has_passed(
    cluster: EmbeddedBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "ASK_PATIENCE_S", 60.0)
    monkeypatch.setattr(committer_module, "ASK_AGAIN_S", 0.0)
    with committer(cluster, target) as source:
        source.start()
        before = source._progress.next_batch
        source.keep()
        assert (source._progress.next_batch, source._rest_s) == (before, LONGEST_RETENTION_S / 4)  # of a week, that is
        source._committed_at -= LONGEST_RETENTION_S / 4
        source.keep()
        source.keep()
        assert source._progress.next_batch == before + 1


def test_a_source_that_rests_goes_on_while_no_broker_says_how_long_it_keeps_what_is_committed(
    cluster: EmbeddedBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "ASK_PATIENCE_S", 60.0)
    monkeypatch.setattr(committer_module, "ASK_AGAIN_S", 0.0)
    with committer(cluster, target) as source:
        source.start()
        with monkeypatch.context() as gone:
            gone.setattr(source, "_settings", ClusterSettings.of("127.0.0.1:1"))
            gone.setattr(committer_module, "ASK_PATIENCE_S", 0.1)
            source.keep()
            assert source._rest_s is None
        source.keep()
        assert source._rest_s == LONGEST_RETENTION_S / 4


def test_a_source_that_rests_is_kept_though_no_broker_ever_says_for_how_long(
    cluster: EmbeddedBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> float:
        raise BrokerUnreachable("no broker answers")

    monkeypatch.setattr(committer_module, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(committer_module, "retention_s", silent)
    with committer(cluster, target) as source:
        source.start()
        before = source._progress.next_batch
        source.keep()
        assert source._progress.next_batch == before
        source._committed_at -= LONGEST_RETENTION_S / 4
        source.keep()
        assert source._progress.next_batch == before + 1


def test_positions_whose_marker_comes_late_are_waited_for(
    cluster: EmbeddedBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is answered when it is decided, a moment before readers see it."""
    with committer(cluster, target) as source:
        source.start()
        source.commit([(target, rows("a"))], {"file": "1"})
        looks = iter([{"file": "0"}, {"file": "0"}])
        module = "onceflow.ingest.committer"
        monkeypatch.setattr(f"{module}.read_positions", lambda *given: next(looks, None) or read_positions(*given))
        monkeypatch.setattr(f"{module}._LOOK_AGAIN_S", 0.0)
        assert source.start() == {"file": "1"}
        assert next(looks, None) is None
