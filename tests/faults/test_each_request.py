"""One request of each kind comes twice, late or too late, or its connection is torn: nothing is done twice, nothing is missing.

The requests are those of ``test_lost_answers.py``; here they meet what else a network does to a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tests.faults.light
from tests.faults.light import FailsOnce, Job, LightDriver
from tests.faults.support import RECORDS_PER_BATCH, Cluster, eventually, expected_records
from tests.faults.test_lost_answers import REQUESTS, job
from tests.undefended import CommitsOnce, abort_commits_without_an_answer

from onceflow.errors import Fenced
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_own_topic
from onceflow.transaction.messages import Identity
from onceflow.transaction.producer import Target
from onceflow.transaction.questions import NO_IDENTITY
from onceflow.transaction.requests import Requests
from onceflow.verify.simulator.variants import VARIANTS, RefusedIsAborted, UnknownIsCommitted
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, Rules, Wire, apis

pytestmark = pytest.mark.faults

BATCHES = 2
DELAY_S = 0.1
MOMENT_S = 1e-3
OVERTAKEN = "overtaken"
DISTURBANCES = {
    "doubled": Rule(Do.DUPLICATE),
    "delayed": Rule(Do.DELAY, delay_s=DELAY_S),
    "torn on its way": Rule(Do.RESET),
    "torn when it is answered": Rule(Do.RESET, direction=Direction.ANSWER),
}
HOW = [*DISTURBANCES, OVERTAKEN]
COMES_TWICE = ["doubled", OVERTAKEN]
FENCE = "the fence"

Case = tuple[int, str, str]  # transaction version, request, what becomes of it


def cases() -> Iterator[Case]:
    """But for fences that come twice; and beside the last records others are under way, so who overtakes them is not known."""
    for what, (_, _, versions) in REQUESTS.items():
        for case in product(versions, [what], HOW):
            if case[1:] not in {*product([FENCE], COMES_TWICE), ("the last records", OVERTAKEN)}:
                yield case


def some_long(found: list[Case]) -> list[Any]:
    """Of several requests of one kind `make test` takes the last."""
    last = {(version, REQUESTS[what][0], how): (version, what, how) for version, what, how in found}
    return [pytest.param(*case, marks=[] if case in last.values() else pytest.mark.long) for case in found]


def disturb(rules: Rules, how: str, api: int, number: int = 0) -> tuple[ActiveRule, ...]:
    """From now on, one request of a kind. Each of these rules is to meet one."""

    def meets_one(rule: Rule) -> ActiveRule:
        return rules.add(replace(rule, apis=frozenset({api}), first=number, count=1))

    if how != OVERTAKEN:
        return (meets_one(DISTURBANCES[how]),)
    held = meets_one(Rule(Do.HOLD))

    def arrives() -> None:
        """Between the repetition and its answer, so that whatever the driver does next comes behind both."""
        held.release()
        eventually(lambda: held.is_answered, bool, "the request that was overtaken is answered")

    return held, meets_one(Rule(Do.DELAY, direction=Direction.ANSWER, delay_s=MOMENT_S, then=arrives))


@contextmanager
def disturbing(how: str, what: str) -> Iterator[Wire]:
    """A wire on which that request meets it, once."""
    api, number, _ = REQUESTS[what]
    with Wire() as wire:
        met = disturb(wire.rules, how, api, number)
        yield wire
    assert_met(met)


def assert_met(met: tuple[ActiveRule, ...]) -> None:
    assert [rule.applied for rule in met] == [1] * len(met)
    assert all(rule.is_answered for rule in met if rule.rule.do is Do.HOLD), "the broker has not got it"


def check(cluster: Cluster, driver: LightDriver) -> None:
    """The output, the progress and the source offsets."""
    cluster.check_exactly(driver.topic, expected_records(BATCHES))
    with KafkaClient({"bootstrap_servers": cluster.servers.split(",")}) as client:
        found = Requests(client, driver.job.name, version=1, timeout_ms=0).read_committed()
    assert found.progress is not None
    assert found.progress.next_batch == BATCHES
    assert found.offsets == {(driver.topic, 0): BATCHES * RECORDS_PER_BATCH}


def times(driver: LightDriver, step: str) -> int:
    return [each for each, _ in driver.steps].count(step)


@pytest.mark.parametrize(("version", "what", "how"), some_long(list(cases())))
def test_a_request_is(request: pytest.FixtureRequest, tmp_path: Path, version: int, what: str, how: str) -> None:
    cluster = request.getfixturevalue(f"v{version}")
    with disturbing(how, what) as wire:
        driver = LightDriver(job(cluster, tmp_path, wire))
        driver.run()
    check(cluster, driver)
    assert times(driver, "ABORT") == 0
    assert times(driver, "WRITE") == BATCHES, "a batch was written again"


@pytest.mark.parametrize("how", COMES_TWICE)
def test_who_fences_twice_takes_the_second_for_another_driver_and_the_next_start_goes_on(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    """Nothing tells it from one that has fenced and not claimed yet: it stops before it has written anything."""
    with disturbing(how, FENCE) as wire:
        driver = LightDriver(job(cluster, tmp_path, wire))
        with pytest.raises(Fenced, match="holds the transactional id, we began with"):
            driver.run()
    assert driver.steps[-1] == ("CONFIRM", -1)
    LightDriver(replace(driver.job, options={})).run()
    check(cluster, driver)


class AbortDisturbed(FailsOnce):
    """How many requests of its kind come before its abort depends on how fast markers are."""

    def __init__(self, job: Job, wire: Wire, how: str, api: int) -> None:
        super().__init__(job)
        self._disturb = partial(disturb, wire.rules, how, api)
        self.met: tuple[ActiveRule, ...] = ()

    def step(self, step: str, batch_id: int) -> None:
        if step == "ABORT":
            self.met = self._disturb()
        super().step(step, batch_id)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("version", "api"), [(1, apis.INIT_PRODUCER_ID), (2, apis.END_TXN)])
def test_an_abort_is(request: pytest.FixtureRequest, tmp_path: Path, version: int, api: int, how: str) -> None:
    cluster = request.getfixturevalue(f"v{version}")
    with Wire() as wire:
        driver = AbortDisturbed(job(cluster, tmp_path, wire), wire, how, api)
        driver.run()
    assert driver.met
    assert_met(driver.met)
    check(cluster, driver)
    assert times(driver, "ABORT") == 1
    assert times(driver, "WRITE") == BATCHES + 1


@pytest.mark.parametrize("how", HOW)
def test_the_request_that_makes_a_topic_of_our_own_is(v2: Cluster, how: str) -> None:
    name = v2.unique("own")
    with Wire() as wire:
        met = disturb(wire.rules, how, apis.CREATE_TOPICS)
        with KafkaClient({"bootstrap_servers": v2.servers.split(","), "proxy_url": wire.url}) as client:
            ensure_own_topic(client, name)
    assert_met(met)
    assert v2.partitions(name) == [0]


def test_no_kind_is_left_out(cluster: Cluster, tmp_path: Path) -> None:
    """Of those that a driver sends once the topic of the progress is made."""
    version = cluster.broker.status().transaction_version
    with Wire() as wire:
        driver = LightDriver(job(cluster, tmp_path, wire))
        driver.open()
        driver.close()
        wire.seen.clear()
        driver.run()
    assert set(wire.seen) == {api for api, _, versions in REQUESTS.values() if version in versions}


# ------------------------------------------------------------------------------------------------------------ controls


@pytest.mark.parametrize("how", [*COMES_TWICE, "torn when it is answered"])
def test_control_records_without_a_sequence_come_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Progress and offsets are committed as ever, but the leaders do not know the records again."""

    def unknown(identity: Identity, transactional_id: str, version: int) -> Target:
        return Target(NO_IDENTITY, None, version)

    monkeypatch.setattr(tests.faults.light, "Target", unknown)
    monkeypatch.setattr(tests.faults.light, "Protocol", VARIANTS["no audit"].machine)
    found = records_after(cluster, tmp_path, how, "the first records")
    assert set(found) == set(expected_records(BATCHES))
    assert max(found.values()) == 2


def test_control_who_aborts_a_commit_that_was_torn_when_it_was_answered_writes_the_batch_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_commits_without_an_answer(monkeypatch, tests.faults.light)
    found = records_after(cluster, tmp_path, "torn when it is answered", "the batch's commit")
    assert found == Counter(expected_records(BATCHES)) + Counter(expected_records(1))


class GoesOnFromAnUnknownCommit(UnknownIsCommitted, RefusedIsAborted):
    """Nor lets what it reads later tell it better: else the next batch does not continue what is committed, and is refused."""


def test_control_who_takes_a_commit_that_was_torn_on_its_way_for_done_loses_the_batch(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.faults.light, "Requests", CommitsOnce)
    monkeypatch.setattr(tests.faults.light, "Protocol", GoesOnFromAnUnknownCommit)
    found = records_after(cluster, tmp_path, "torn on its way", "the batch's commit")
    assert found == Counter(expected_records(BATCHES)) - Counter(expected_records(1))


def records_after(cluster: Cluster, directory: Path, how: str, what: str) -> Counter[tuple[str, str]]:
    """How often each record is committed."""
    with disturbing(how, what) as wire:
        driver = LightDriver(job(cluster, directory, wire))
        driver.run()
    return Counter((key or "", value or "") for _, key, value in cluster.read(driver.topic))
