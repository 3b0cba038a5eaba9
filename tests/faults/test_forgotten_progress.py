"""The cluster drops the progress of a pipeline that rests, or somebody deletes it: ``offsets.retention.minutes`` is 7 days by
default, and here one minute, the least that there is. Everything else is forgotten within a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.faults.light import RECORDS_PER_BATCH, Job, LightDriver
from tests.faults.support import Cluster, eventually, expected_records
from tests.faults.test_forgotten_ids import FORGETFUL, rest_until_forgotten

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced, ProgressConflict, ProgressGone
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.committed import committed_offsets, read_committed
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.messages import Initialised
from onceflow.transaction.progress import Batch, Progress
from onceflow.transaction.questions import Committed
from onceflow.transaction.renewing import Renewal, retention_s
from onceflow.transaction.requests import Requests
from onceflow.transaction.resuming import starts_elsewhere
from onceflow.transaction.source_mark import mark_of

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

MINUTE_S = 60.0
MOST_S = 3 * MINUTE_S
AT_ONCE = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def forgetful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("forgetful")
    version: int = request.param
    config = {**FORGETFUL, **AT_ONCE}
    with (
        EmbeddedBroker(directory, transaction_version=version, heap_mb=256, config=config) as broker,
        closing(Cluster(broker)) as cluster,
    ):
        yield cluster


def job_of(cluster: Cluster, directory: Path, what: str) -> Job:
    name = cluster.unique(what)
    return Job(cluster.servers, name, cluster.make_topic(), str(directory / name), batches=3)


def after_its_first_batch(job: Job, left: ExitStack) -> tuple[LightDriver, TransactionCoordinator]:
    driver = LightDriver(job)
    coordinator = driver.open()
    left.callback(driver.close)
    driver.run_batch(coordinator, 0)
    return driver, coordinator


def committed(cluster: Cluster, name: str) -> Committed:
    return read_committed(name, ClusterSettings.of(cluster.servers))


def await_gone(cluster: Cluster, name: str) -> None:
    eventually(lambda: committed(cluster, name), lambda found: found.progress is None, f"{name} is dropped", MOST_S)


def delete(cluster: Cluster, name: str) -> None:
    """As ``kafka-consumer-groups --delete`` does."""
    group = f"onceflow-{name}"
    cluster.admin.delete_consumer_groups([group])[group].result(MINUTE_S)
    await_gone(cluster, name)


def renew(coordinator: TransactionCoordinator) -> None:
    assert coordinator.renew()


def test_what_is_renewed_is_kept_for_as_long_as_the_pipeline_rests(forgetful: Cluster, tmp_path: Path) -> None:
    """Beside it the same without renewal, in the same minute, and a sink that was opened and has had no batch at all."""
    settings = ClusterSettings.of(forgetful.servers)
    assert retention_s(settings) == MINUTE_S
    with ExitStack() as left:
        renewed, held = after_its_first_batch(job_of(forgetful, tmp_path, "renewed"), left)
        idle = left.enter_context(
            closing(KafkaSink(name=forgetful.unique("idle"), bootstrap_servers=forgetful.servers))
        )
        idle.open(planned=False)
        renewal = Renewal(renewed.job.name, lambda age_s: renew(held), lambda: retention_s(settings))
        renewal.start()
        forgotten, lost = after_its_first_batch(job_of(forgetful, tmp_path, "forgotten"), left)

        await_gone(forgetful, forgotten.job.name)
        renewal.stop()
        renewal._thread.join(MINUTE_S)
        renew(held)  # what follows rests for a while
        found = committed(forgetful, renewed.job.name)
        assert found.progress is not None
        assert found.progress.next_batch == 1
        assert dict(found.ends) == {(renewed.topic, 0): RECORDS_PER_BATCH}
        assert committed(forgetful, idle._options.name).progress is not None

        rest_until_forgotten(renewed.requests, renewed.topic, forgetful.partitions(renewed.topic))
        for batch_id in (1, 2):
            renewed.run_batch(held, batch_id)
        with pytest.raises(ProgressGone, match=f"group onceflow-{forgotten.job.name}"):
            forgotten.run_batch(lost, 1)
    forgetful.check_exactly(renewed.topic, expected_records(3))
    forgetful.check_exactly(forgotten.topic, expected_records(1))


def test_a_renewal_by_a_driver_that_slept_while_another_one_finished_changes_nothing(
    forgetful: Cluster, tmp_path: Path
) -> None:
    """Whether all have forgotten both by then, or know the newer one."""
    for forgets in (False, True):
        with ExitStack() as left:
            older, held = after_its_first_batch(job_of(forgetful, tmp_path, "slept"), left)
            newer = LightDriver(older.job)
            newer.run()
            older.requests.describe(settle=True)  # its last commit was answered, which is not yet seen to be there
            if forgets:
                rest_until_forgotten(older.requests, older.topic, forgetful.partitions(older.topic))
            before = committed(forgetful, older.job.name)
            with pytest.raises(Fenced):
                held.renew()
            assert committed(forgetful, older.job.name) == before
            with pytest.raises(Fenced):
                older.run_batch(held, 1)
        forgetful.check_exactly(older.topic, expected_records(3))


def test_progress_that_somebody_deleted_is_put_back_while_the_coordinator_knows_the_driver(
    cluster: Cluster, tmp_path: Path
) -> None:
    with ExitStack() as left:
        driver, held = after_its_first_batch(job_of(cluster, tmp_path, "deleted"), left)
        delete(cluster, driver.job.name)
        assert held.renew()
        driver.requests.describe(settle=True)
        found = committed(cluster, driver.job.name).progress
        assert found is not None
        assert found.next_batch == 1
        driver.run_batch(held, 1)
    cluster.check_exactly(driver.topic, expected_records(2))


def test_a_newer_driver_is_not_hidden_by_progress_that_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """What proves that nobody came is the epoch, and that is another's by now."""
    with ExitStack() as left:
        older, held = after_its_first_batch(job_of(cluster, tmp_path, "hidden"), left)
        LightDriver(older.job).run()
        delete(cluster, older.job.name)
        with pytest.raises(Fenced):
            held.renew()
        assert committed(cluster, older.job.name).progress is None
    cluster.check_exactly(older.topic, expected_records(3))


def test_where_the_output_ended_binds_while_the_first_claim_is_on_its_way(cluster: Cluster, tmp_path: Path) -> None:
    """Until its marker is written the broker says nothing of it, and gives the offsets beside it as stable ones."""
    with ExitStack() as left:
        driver = LightDriver(job_of(cluster, tmp_path, "claiming"))
        driver.open()
        left.callback(driver.close)
        requests, at = driver.requests, (driver.topic, 0)
        requests.commit_offsets({at: 7})
        began, claim = requests.initialise(None), Progress.empty("claims")
        assert isinstance(began, Initialised)
        requests.store(began.identity, claim, {})
        for progress in (None, claim):
            found = requests.read_committed()
            assert (found.progress, found.offsets) == (progress, {at: 7})
            assert elsewhere(requests, at, 0) == [f"{driver.topic}-0 starts at 0, committed is 7"]
            assert elsewhere(requests, at, 7) == []
            requests.end(began.identity, commit=True)
            requests.describe(settle=True)


def elsewhere(requests: Requests, at: tuple[str, int], start: int) -> list[str]:
    """As a sink that resumes is told of a new query."""
    found = requests.read_committed()
    return starts_elsewhere(found.progress, "new", lambda: {at: start}, found.offsets, found.newest)


def test_offsets_that_at_least_once_has_committed_since_are_not_said_to_be_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    with ExitStack() as left:
        driver = LightDriver(job_of(cluster, tmp_path, "changed"))
        held = driver.open()
        left.callback(driver.close)
        name, at = driver.job.name, (driver.topic, 0)
        held.commit(Batch(0, "q", "", "end", mark_of({at: 20}, agree=True)), {at: 20}, lambda *_: {})
        driver.requests.describe(settle=True)
        assert committed(cluster, name).why_not_resumed == ""
        driver.requests.commit_offsets({at: 30})
        with pytest.raises(ProgressConflict, match="newer source offsets than those of batch 0"):
            committed_offsets(name, bootstrap_servers=cluster.servers)
