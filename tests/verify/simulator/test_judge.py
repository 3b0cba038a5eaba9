"""The simulator's judge: where a user took a checkpoint as it was the output begins again there, once, and nowhere else."""

from __future__ import annotations

import pytest

from onceflow.kafka.client import GROUP
from onceflow.kafka.codes import NONE
from onceflow.transaction.messages import Event, Identity, ReadProgress
from onceflow.transaction.progress import Batch, Progress
from onceflow.transaction.questions import Questions
from onceflow.verify.simulator import run
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.client import Client
from onceflow.verify.simulator.judge import judge
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import Committed, InitProducerId, sources_at
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.scheduler import Process
from onceflow.verify.simulator.transactions import EXHAUSTED, Transactions
from onceflow.verify.simulator.wire import offsets_at
from onceflow.verify.simulator.world import FOREIGN, PARTITIONS, Variant, World

RECORDS = 6


def world_that_shows(visible: list[int], *leaps: tuple[int, int]) -> World:
    """A run that has ended, of which this is visible."""
    world = World(Scenario(records=RECORDS), Choices(0, {}, None), Variant())
    for number, partition in enumerate(world.broker.partitions):
        partition.begin_with(tuple(value for value in visible if value % PARTITIONS == number))
    world.broker.group.begin_with(RECORDS)
    has_committed(world, LAST)
    world.leaps += leaps
    return world


LAST = Batch(1, "q1", "4", str(RECORDS))


def has_committed(world: World, batch: Batch) -> None:
    """The newest batch of a query that has offered no other."""
    world.offered(batch)
    progress = Progress(batch.id + 1, batch.query_id, "driver-1", (batch.start, batch.end))
    world.broker.group.committed = Committed(progress, sources_at(RECORDS))


def told(world: World) -> list[str]:
    """What the judge says of it."""
    return list(map(str, judge(world)))


@pytest.mark.parametrize(
    ("visible", "leaps"),
    [
        ([0, 1, 2, 3, 4, 5], []),
        ([0, 1, 2, 3, 2, 3, 4, 5], [(4, 2)]),
        ([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], [(6, 0)]),
        ([0, 1, 4, 5], [(2, 4)]),  # the checkpoint was ahead of what is committed
        ([0, 1, 0, 1, 2, 3, 2, 3, 4, 5], [(2, 0), (4, 2)]),
    ],
)
def test_the_output_begins_again_where_the_user_has_it_begin_again(
    visible: list[int], leaps: list[tuple[int, int]]
) -> None:
    assert told(world_that_shows(visible, *leaps)) == []


@pytest.mark.parametrize(
    ("visible", "leaps", "found"),
    [
        ([0, 1, 2, 3], [], ["partition 0: lost [4]", "partition 1: lost [5]"]),
        ([0, 1, 4, 5], [(4, 4)], ["partition 0: lost [2]", "partition 1: lost [3]"]),
        ([], [(4, 6)], ["partition 0: lost [0, 2]", "partition 1: lost [1, 3]"]),
        ([0, 1, 2, 3], [(6, 6)], ["partition 0: lost [4]", "partition 1: lost [5]"]),
        ([0, 1, 2, 3, 2, 3, 2, 3, 4, 5], [(4, 2)], ["partition 0: repeated [2]", "partition 1: repeated [3]"]),
        ([0, 1, 4, 5, 2, 3], [], ["partition 0: out of order [0, 4, 2]", "partition 1: out of order [1, 5, 3]"]),
    ],
)
def test_it_begins_again_nowhere_else(visible: list[int], leaps: list[tuple[int, int]], found: list[str]) -> None:
    assert told(world_that_shows(visible, *leaps)) == found


def test_only_a_batch_that_is_committed_begins_it_again_and_only_once() -> None:
    world = world_that_shows([])
    world.broker.group.reached = 4
    again, other = Batch(1, "q", "2", "4"), Batch(2, "q", "0", "6")
    for batch in (again, other):
        world.taken_as_it_is(3, batch, int(batch.start), None)
    world.taken_as_it_is(4, again, 3, None)  # another driver has planned it from elsewhere
    assert world.leaps == []
    committed = Committed(Progress(2, "q", "driver-3.2", ("2", "4")), sources_at(4))
    for _ in range(2):  # the second one is a renewal
        world.broker.group.watch(committed)
    assert world.leaps == [(4, 2)]
    world.taken_as_it_is(3, again, 2, committed.progress)  # it is skipped, whatever the group knows by now
    world.broker.group.watch(committed)
    assert world.leaps == [(4, 2)]


def test_an_output_that_begins_again_is_seen_through_although_somebody_found_nothing_to_do() -> None:
    """Driver 4 begins again, driver 6 finds all committed before it hears of that, driver 4 is killed: was taken for a loss."""
    rates = {"request": 0.1, "driver": 0.1, "second": 0.1, "rest": 0.3, "people": 0.1, "partly": 0.3}
    outcome = run(299, scenario=Scenario(version=2, drivers=1, rates=rates))
    assert "user: the output begins again" in outcome.reached
    assert [each.text for each in outcome.anomalies] == []


def test_an_output_that_begins_again_with_a_batch_that_ends_before_it_starts_goes_on_at_its_end() -> None:
    """A mixed checkpoint that a user takes as it is: batch 3 from 9 to 8, then batch 4 from 8 to 9: was taken for repeated."""
    rates = {"checkpoint": 0.1, "plan": 0.3, "driver": 0.1}
    outcome = run(869, scenario=Scenario(version=2, drivers=2, rates=rates, readings_differ=True))
    assert "user: the output begins again" in outcome.reached
    assert [each.text for each in outcome.anomalies] == []


def test_it_is_seen_through_also_when_nobody_looks_any_more() -> None:
    world = world_that_shows([])
    world.done = True
    world._round()
    assert world._at_rest
    world._go_on()
    assert not world.done
    assert world._scheduler.step(), "somebody looks again"
    assert world._living


@pytest.mark.parametrize(
    "progress",
    [
        Progress(1, "q1", "driver-1", ("4",)),  # of the batch before
        Progress(3, "q1", "driver-1", ("4", "6")),  # of one that nobody offered
        Progress(2, "q0", "driver-1", ("4", "6")),  # of another query
    ],
)
def test_the_committed_progress_is_that_of_the_last_batch(progress: Progress) -> None:
    """Output and source offsets are right, and the next start would be refused, or write again."""
    world = world_that_shows([*range(RECORDS)])
    world.broker.group.committed = Committed(progress, sources_at(RECORDS))
    assert told(world) == [f"the committed progress is not that of the last batch: {progress}"]


@pytest.mark.parametrize("progress", [None, Progress.empty("driver-2")])
def test_progress_may_be_gone_only_if_it_has_expired(progress: Progress | None) -> None:
    world = world_that_shows([*range(RECORDS)])
    world.broker.group.committed = Committed(progress, sources_at(RECORDS))
    assert told(world) == ["no progress is committed"]
    world.progress_expired = True
    assert told(world) == []


def test_who_starts_and_who_resumes_are_told_what_whoever_is_named_knows() -> None:
    """A group coordinator that was replaced, and has not heard of it."""
    world = World(Scenario(records=RECORDS), Choices(0, {"named": 1.0}), Variant())
    group = world.broker.group
    group.begin_with(2)
    world.broker.replace_group(60)
    group.begin_with(RECORDS)
    assert world._found().offsets == offsets_at(2)
    world._resume()
    assert world.checkpoint.initial == 2
    world.choices.quiet = True  # the one that coordinates is named
    assert world._found().offsets == offsets_at(RECORDS)
    world._resume()
    assert world.checkpoint.initial == RECORDS


def test_what_was_told_once_explains_no_conflict_once_the_truth_is_told() -> None:
    world = World(Scenario(records=RECORDS), Choices(0, {"named": 1.0}), Variant())
    world.broker.group.begin_with(2)
    world.broker.replace_group(800)
    assert misled(world) == set(), "that is what is committed"
    world.broker.group.begin_with(RECORDS)
    assert misled(world) == {(GROUP, 3)}
    world.choices.quiet = True  # the one that coordinates is named
    assert misled(world) == set()


def misled(world: World) -> set[tuple[int, int]]:
    """Who was when driver 3 has read what is committed."""
    scheduler = world._scheduler
    network = Network(scheduler, world.choices, world.broker)
    client = Client(scheduler, network, Questions("simulated", 2, timeout_ms=60_000), 3, looks_again=True)
    told: list[Event] = []
    Process(scheduler, client.perform(ReadProgress()), told.append)
    while not told:
        assert scheduler.step()
    return world.broker.standing.misled


def conflicts(world: World) -> list[str]:
    """What is told where a driver of the present checkpoint reports a conflict."""
    world.anomalies.clear()
    world._check_conflict(resumes=False)
    return list(map(str, world.anomalies))


def resumed(world: World) -> World:
    """The user has begun a new checkpoint at the committed offsets."""
    world._resume()
    has_committed(world, Batch(0, world.checkpoint.query_id, "", str(RECORDS)))
    return world


UNEXPLAINED = ["a conflict, although checkpoint and progress agree"]


def test_a_batch_that_was_planned_twice_explains_a_conflict_of_its_own_query_alone() -> None:
    """A resume begins a new one, with batches of its own; what became of the old one's is decided."""
    world = world_that_shows([])
    world.planned("q1", 1, 5)
    assert conflicts(world) == UNEXPLAINED
    world.planned("q1", 1, RECORDS)
    assert conflicts(world) == []
    assert conflicts(resumed(world)) == UNEXPLAINED
    for end in (5, RECORDS):
        world.planned(world.checkpoint.query_id, 0, end)
    assert conflicts(world) == []


@pytest.mark.parametrize("what", [1, 5 + len(FOREIGN)], ids=["expired", "topic deleted"])
def test_progress_that_was_lost_explains_no_conflict_behind_the_resume(what: int) -> None:
    world = world_that_shows([])
    world._by_hand(what)
    assert conflicts(world) == []
    assert conflicts(resumed(world)) == UNEXPLAINED
    world._by_hand(what)
    assert conflicts(world) == []


def test_an_identity_behind_the_last_epoch_proves_nothing_until_it_is_used() -> None:
    """Another producer id follows whoever has the last epoch; within one, only who holds the epoch before is followed."""
    coordinator = Transactions(1, EXHAUSTED - 1, lambda *_: None, lambda _: None)
    proves_nothing = []
    for expected in (None, Identity(1001, EXHAUSTED - 1), Identity(1001, EXHAUSTED)):
        given = coordinator.initialise(InitProducerId(expected)).identity
        proves_nothing.append(coordinator.proves_nothing)
    assert proves_nothing == [False, False, True]
    assert given == Identity(1002, 0)
    assert coordinator.add(given, 0).code == NONE
    assert not coordinator.proves_nothing
