"""Relays killed, stopped and replaced at every step; and undefended ones, that lose or repeat there.

=====================  ===========================  =====================  ==========================================
step                   SIGKILL                      SIGSTOP, another one   the connections (``test_outbox_service.py``)
=====================  ===========================  =====================  ==========================================
start, FENCED          both                         both                   database cut, again and again
SETTLED                both                         both
TAKEN                  both                         both, also in the      cut between COMMIT and answer, server killed
                                                    recovery
WRITE, AUDIT, STORE    both (version 1: REFRESH,    both                   Kafka's answer lost; broker killed (below)
                       WRITE)
COMMIT, COMMITTED      both, and in the recovery,   both, also in the      Kafka's answer lost; broker killed (below),
                       version 1                    recovery               and while the relay runs
FORGOTTEN              both                         both, also in the      cut between COMMIT and answer
                                                    recovery
=====================  ===========================  =====================  ==========================================

Who is stopped before its own fence in Kafka is the newer one when it wakes: it fences, and sends what is left.
The controls: rows deleted before the commit are lost; a position committed apart repeats; a reader that goes on from the largest
position loses what an open transaction inserts.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.support import Cluster
from tests.forkserver import ForkServer
from tests.outbox.support import Shop, events, make_outbox, make_sqlite, make_topics
from tests.outbox.worker import Job

from onceflow.errors import Fenced, OnceflowError, OutboxMismatch
from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.relay import Relay
from onceflow.outbox.service import KIND, outbox_at
from onceflow.outbox.table import Limits

pytestmark = pytest.mark.faults

KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)
KAFKA_STEPS = [
    "INSPECT",
    "FENCE",
    "READ",
    "CONFIRM",
    "CLAIM_STORE",
    "CLAIM_COMMIT",
    "WRITE",
    "AUDIT",
    "STORE",
    "COMMIT",
]
STEPS = [*KAFKA_STEPS, "FENCED", "TAKEN", "COMMITTED", "FORGOTTEN"]


def killed_at(workers: ForkServer, job: Job, step: str, time: int = 1) -> None:
    ended = workers.run(replace(job, interrupt=(step, time, KILL)))
    assert (ended.signal, ended.error) == (KILL, ""), f"it did not come to {step}: {ended.text}"


def finish(workers: ForkServer, shop: Shop) -> None:
    ended = workers.run(shop.job)
    assert (ended.signal, ended.error) == (0, ""), ended.text
    shop.check()


def test_the_steps_are_those_of_a_whole_run(shop: Shop, workers: ForkServer) -> None:
    """So that no step is forgotten below."""
    shop.insert_all(events(6))
    ended = workers.run(shop.job)
    assert ended.error == "", ended.text
    assert set(ended.steps) == set(STEPS)


def test_killed_at_every_step(shop: Shop, workers: ForkServer) -> None:
    for number, step in enumerate(STEPS):
        shop.insert_all(events(6, first=6 * number))
        killed_at(workers, shop.job, step)
        finish(workers, shop)


def test_killed_on_transaction_version_1(cluster_v1: Cluster, tmp_path: Path, workers: ForkServer) -> None:
    """There the epoch stays from one transaction to the next, and a REFRESH lies between them; more than a batch each life."""
    shop = make_sqlite(cluster_v1, tmp_path)
    for number, step in enumerate(["REFRESH", "WRITE", "COMMIT", "COMMITTED"]):
        shop.insert_all(events(6, first=6 * number))
        killed_at(workers, shop.job, step)
        finish(workers, shop)


@pytest.mark.parametrize("again", ["FENCED", "CLAIM_COMMIT", "SETTLED"])
def test_killed_between_commit_and_delete_and_again_while_it_recovers(
    shop: Shop, workers: ForkServer, again: str
) -> None:
    shop.insert_all(events(6))
    killed_at(workers, shop.job, "COMMITTED")
    assert shop.rows_left() == 6
    killed_at(workers, shop.job, again)
    finish(workers, shop)


def test_what_is_inserted_between_commit_and_recovery_comes_too(shop: Shop, workers: ForkServer) -> None:
    shop.insert_all(events(3))
    killed_at(workers, shop.job, "COMMITTED")
    shop.insert_all(events(3, first=3))
    finish(workers, shop)


BEFORE_THE_FENCE = ["INSPECT", "FENCE"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.in_turn(3)
def test_a_relay_that_slept_stops_when_another_has_taken_over(shop: Shop, workers: ForkServer, step: str) -> None:
    """One that slept before its own fence is the newer of the two: it fences, and sends what came since."""
    shop.insert_all(events(6))
    sleeping = workers.start_stopped(replace(shop.job, interrupt=(step, 1, STOP)))
    finish(workers, shop)
    shop.insert_all(events(6, first=6))
    ended = workers.wake(sleeping)
    assert (ended.signal, ended.error) == (0, "" if step in BEFORE_THE_FENCE else "FENCED"), ended.text
    assert shop.rows_left() == (0 if step in BEFORE_THE_FENCE else 6)
    finish(workers, shop)


def test_a_relay_that_slept_before_its_claim_leaves_the_table_to_the_one_that_came_since(
    shop: Shop, workers: ForkServer
) -> None:
    """Else that one, when its connection is lost, would find itself replaced, by a relay that Kafka refuses."""
    sleeping = workers.start_stopped(replace(shop.job, interrupt=("FENCED", 1, STOP)))
    finish(workers, shop)
    claimed = shop.claimed_by()
    ended = workers.wake(sleeping)
    assert (ended.signal, ended.error) == (0, "FENCED"), ended.text
    assert shop.claimed_by() == claimed


@contextmanager
def relay_of(shop: Shop, instance: str, on_step: Callable[[str], None] = lambda step: None) -> Iterator[Relay]:
    """A relay that sends two rows a batch."""
    table = outbox_at(shop.url, shop.table)
    table.open()
    settings = ClusterSettings.of(shop.job.servers)
    with closing(table), SourceCommitter(shop.job.name, settings, kind=KIND, trust_positions=True) as committer:
        yield Relay(shop.job.name, table, committer, instance=instance, limits=Limits(2), on_step=on_step)


def test_a_relay_that_is_overtaken_in_its_start_by_one_that_connects_again_says_so(shop: Shop) -> None:
    """Not that table and Kafka disagree: whoever mended that would break the relay that runs."""
    shop.insert_all(events(6))
    with relay_of(shop, "first") as first:
        first.start()
        assert first.step() == 2

    def overtake(step: str) -> None:
        if step == "FENCED":
            with relay_of(shop, "first") as again:
                again.start(again=True)
                assert [again.step(), again.step()] == [2, 2]

    with relay_of(shop, "late", overtake) as late, pytest.raises(Fenced):
        late.start()
    shop.check()


def test_a_relay_that_connects_again_meanwhile_keeps_the_table(shop: Shop) -> None:
    """The late one would find the claim that it had found before its fence, and claim over the one that holds the name."""
    with relay_of(shop, "first") as first:
        first.start()
    with relay_of(shop, "first") as again:

        def overtake(step: str) -> None:
            if step == "FENCED":
                again.start(again=True)

        with relay_of(shop, "late", overtake) as late, pytest.raises(Fenced):
            late.start()
        shop.insert_all(events(2))
        assert again.step() == 2
    shop.check()


def test_a_batch_that_the_relay_that_was_fenced_forgets_first_is_forgotten(shop: Shop, workers: ForkServer) -> None:
    """Both would end as fenced, each because of the other one."""
    shop.insert_all(events(4))
    killed_at(workers, shop.job, "COMMITTED")
    with relay_of(shop, "late") as late, closing(outbox_at(shop.url, shop.table)) as of_the_other:
        of_the_other.open()
        claim = late._table.claim

        def claim_and_be_overtaken(name: str, instance: str, *, over: str | None) -> bool:
            done = claim(name, instance, over=over)
            of_the_other.forget(late._sent)
            return done

        late._table.claim = claim_and_be_overtaken  # type: ignore[method-assign]
        late.start()
        shop.insert_all(events(2, first=4))
        assert (late.step(), late.step()) == (2, 0)
    shop.check()


LOST = {
    "of the relay before": ("instance = 'before', batch = 1", "sent 1 batches, Kafka has 4"),
    "of this relay": ("batch = 2", "sent 2 batches, Kafka has 4"),
    "of before any relay": ("instance = null, batch = 3", "now nobody has"),
    "made anew": (
        "incarnation = '8b55a43f-d341-4df8-9fb3-ff1b9b1ea4a6', instance = null, batch = 0",
        "of another table",
    ),
}


def send_four_batches(shop: Shop) -> None:
    """The first one by the relay before."""
    shop.insert_all(events(8))
    with relay_of(shop, "before") as before:
        before.start()
        assert before.step() == 2
    with relay_of(shop, "running") as running:
        running.start()
        assert [running.step(), running.step(), running.step()] == [2, 2, 2]


@pytest.mark.parametrize("lost", [lost for lost in LOST if lost != "of this relay"])
def test_a_database_that_was_restored_is_no_relay_that_took_over(shop: Shop, lost: str) -> None:
    """The relay connects again, and does not find its claim; FENCED would say that somebody else sends what is there."""
    restored, said = LOST[lost]
    send_four_batches(shop)
    shop.change(f"update {shop.table}_relay set {restored}")
    with relay_of(shop, "running") as again, pytest.raises(OutboxMismatch, match=said):
        again.start(again=True)


@pytest.mark.parametrize("lost", LOST)
def test_a_database_that_is_restored_in_place_is_none_either(shop: Shop, lost: str) -> None:
    """The relay keeps its connection."""
    restored, said = LOST[lost]
    send_four_batches(shop)
    with relay_of(shop, "running") as running:
        running.start(again=True)
        shop.insert_all(events(2, first=8))
        shop.change(f"update {shop.table}_relay set {restored}")
        with pytest.raises(OutboxMismatch, match=said):
            running.step()
    assert shop.rows_left() == 2


def test_a_relay_that_took_over_and_has_yet_to_forget_a_batch_is_given_way_to(shop: Shop) -> None:
    """Its table is a batch behind, as one that was restored may be."""
    send_four_batches(shop)
    shop.insert_all(events(2, first=8))

    def connect_again(step: str) -> None:
        if step == "COMMITTED":
            with relay_of(shop, "running") as again, pytest.raises(Fenced, match="took over"):
                again.start(again=True)

    with relay_of(shop, "late", connect_again) as late:
        late.start()
        assert (late.step(), late.step()) == (2, 0)
    shop.check()


def make_anew(shop: Shop) -> None:
    """As a migration may do it."""
    for table in (shop.table, f"{shop.table}_relay", f"{shop.table}_refused"):
        shop.change(f"drop table {table}")
    make_outbox(shop)


def begin_anew(shop: Shop) -> None:
    shop.change(f"update {shop.table}_relay set incarnation = {shop.mark}, name = null", str(uuid.uuid4()))


@pytest.mark.parametrize("change", [make_anew, begin_anew])
def test_a_table_that_became_another_one_is_refused_before_its_rows_are_sent(
    shop: Shop, change: Callable[[Shop], None]
) -> None:
    """Nothing was sent of either, so the counts of batches agree; the rows would be in Kafka, and stay in the table."""
    with relay_of(shop, "running") as running:
        running.start()
        change(shop)
        shop.insert_all(events(2))
        with pytest.raises(OutboxMismatch, match=r"of another table|nobody has"):
            running.step()
    assert (shop.values(), shop.rows_left()) == ([], 2)


def test_of_two_relays_of_two_names_one_sends(shop: Shop) -> None:
    """The table was begun anew under another name, and nobody has ended the relay that ran: in Kafka they do not meet."""
    with relay_of(shop, "running") as running:
        running.start()
        begin_anew(shop)
        renamed = replace(shop, name=f"{shop.name}-anew")
        with relay_of(renamed, "anew") as anew:
            anew.start()
            shop.insert_all(events(2))
            with pytest.raises(OutboxMismatch, match=f"belongs to the relay '{renamed.name}'"):
                running.step()
            assert anew.step() == 2
    shop.check()


def test_control_of_two_relays_of_two_names_both_send_where_the_table_does_not_tell_them_apart(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relay_of(shop, "running") as running:
        running.start()
        begin_anew(shop)
        with relay_of(replace(shop, name=f"{shop.name}-anew"), "anew") as anew:
            anew.start()
            shop.insert_all(events(2))
            with monkeypatch.context() as patch:
                take = running._table.take
                patch.setattr(running._table, "take", lambda _, limits: take(running._table.place(), limits))
                with pytest.raises(OnceflowError):  # behind its commit, where it would delete the rows
                    running.step()
            assert anew.step() == 2
    assert sorted(map(str, shop.values())) == ["0", "0", "1", "1"]


def test_of_two_relays_of_one_name_on_two_clusters_the_later_one_sends(shop: Shop, cluster_v1: Cluster) -> None:
    """The first one had a wrong address of Kafka, and runs on."""
    right = replace(shop, cluster=cluster_v1)
    make_topics(cluster_v1, [right.topic])
    with relay_of(shop, "wrong") as wrong, relay_of(right, "right") as other:
        wrong.start()
        other.start()
        right.insert_all(events(2))
        with pytest.raises(Fenced, match="another relay has gone on"):
            wrong.step()
        assert other.step() == 2
    assert shop.values() == []
    right.check()


@pytest.mark.parametrize("step", ["FENCED", "SETTLED", "TAKEN", "COMMIT", "COMMITTED", "FORGOTTEN"])
@pytest.mark.in_turn(3)
def test_a_relay_that_slept_in_its_recovery_stops_too(shop: Shop, workers: ForkServer, step: str) -> None:
    """Kafka has a batch that the table still holds; whoever takes over books it, and the sleeper must not book it again."""
    shop.insert_all(events(6))
    killed_at(workers, shop.job, "COMMITTED")
    sleeping = workers.start_stopped(replace(shop.job, interrupt=(step, 1, STOP)))
    finish(workers, shop)
    shop.insert_all(events(6, first=6))
    ended = workers.wake(sleeping)
    assert (ended.signal, ended.error) == (0, "FENCED"), ended.text
    finish(workers, shop)


def test_rows_that_were_deleted_by_others_before_the_relay_could_are_told(shop: Shop, workers: ForkServer) -> None:
    shop.insert_all(events(4))
    killed_at(workers, shop.job, "COMMITTED")
    shop.change(f"delete from {shop.table} where position = (select min(position) from {shop.table})")
    ended = workers.run(shop.job)
    assert ended.error == "OUTBOX_MISMATCH"
    assert "3 of 4 are there" in ended.text
    assert "batch 1 is committed in Kafka" in ended.text
    assert shop.rows_left() == 3


KILLED_AT = ["WRITE", "AUDIT", "STORE", "COMMIT", "COMMITTED"]


def test_a_broker_killed_in_the_middle(mortal: Cluster, tmp_path: Path, workers: ForkServer) -> None:
    """Before the records, their audit, the position and the commit are sent, and behind it: each relay waits and goes on."""
    shops = {step: make_sqlite(mortal, tmp_path) for step in KILLED_AT}
    for shop in shops.values():
        shop.insert_all(events(6))
    waiting = {
        step: workers.start_stopped(replace(shop.job, interrupt=(step, 1, STOP))) for step, shop in shops.items()
    }
    mortal.broker.kill()
    mortal.broker.start()
    for process in waiting.values():
        workers.go_on(process)
    for step, process in waiting.items():
        ended = workers.wait(process)
        assert (ended.signal, ended.error, ended.told.get("sent")) == (0, "", 6), f"{step}: {ended.text}"
        shops[step].check()


# ------------------------------------------------------------------------------------------------------- controls


def test_deleting_before_the_commit_would_lose(shop: Shop, workers: ForkServer) -> None:
    shop.insert_all(events(4))
    killed_at(workers, replace(shop.job, variant="deletes first"), "BETWEEN")
    assert shop.rows_left() == 0
    assert shop.values() == []


def test_a_position_committed_apart_from_the_records_would_repeat(shop: Shop, workers: ForkServer) -> None:
    shop.insert_all(events(4))
    killed_at(workers, replace(shop.job, variant="commits apart"), "BETWEEN")
    workers.run(shop.job)
    assert sorted(map(str, shop.values())) == sorted(["0", "1", "2", "3"] * 2)


def test_reading_on_from_the_last_position_would_lose_a_row_behind_an_open_transaction(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    with closing(shop.connect()) as slow:
        shop.insert(slow, "slow", "1")
        shop.insert_all([("fast", "2")])
        last, seen = read_beyond(shop, 0)
        slow.commit()
    assert seen == [2]
    assert read_beyond(shop, last) == (last, []), "position 1 is there now, and is not seen"
    assert shop.relay() == 2, "what the relay itself sees"


def read_beyond(shop: Shop, last: int) -> tuple[int, list[int]]:
    """A reader that keeps the last position that it has seen."""
    table = outbox_at(shop.url, shop.table)
    table.open()
    try:
        seen = [row.position for row in table.take(table.place(), Limits()) if row.position > last]
    finally:
        table.close()
    return max([last, *seen]), seen
