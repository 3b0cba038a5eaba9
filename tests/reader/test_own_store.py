"""A store that is the process's own (memory) refuses nobody: a reader that stood still asks Kafka before it goes on."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, replace

import pytest
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import PROTOCOLS, SESSION_TIMEOUT_S, Places, soon_missed
from tests.reader.support import TIMEOUT_S, LightReader, Place, eventually
from tests.reader.zombies import letters

from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.reader.stores.memory import MemoryStore

EVENTS = [str(number) for number in range(40)]
POISON = "15"
STEPS = {  # and how often before: in the first moments of a group, and in the second batch
    **dict.fromkeys(("taken", "begun", "witnessed", "offsets", "buried"), 0),
    "polled": 1,
    "claimed": 1,
    "handled": 14,
    "committed": 14,
}


@dataclass
class Stopped:
    """A reader that has stopped itself at a step, and what there was at that moment."""

    place: Place
    process: LightReader
    poison: str | None
    done: list[str]
    told: int

    @classmethod
    def at(cls, place: Place, process: LightReader) -> Stopped:
        process.until_stopped()
        done, told = place.effects(), place.committed().get(0, 0)
        assert EVENTS[: len(done)] == done
        assert told <= len(done) < len(EVENTS), "it is stopped in the middle"
        return cls(place, process, process.job.poison, done, told)

    @property
    def expected(self) -> list[str]:
        """The next owner goes on where Kafka is, as after a death; whoever wakes adds nothing."""
        return [*self.done, *(text for text in EVENTS[self.told :] if text != self.poison)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stopped_until_its_partition_moved_it_handles_nothing_when_it_wakes(
    places: Places, read: ReadAll, protocol: str
) -> None:
    """Stopped at each step, in a group and a topic for each: they stand still at the same time. Taken from it: below."""
    options = {"group_protocol": protocol, "batch_size": 10, "retries": 0}
    started = []
    for step, before in STEPS.items():
        place = places()
        place.send(EVENTS)
        poison = POISON if step == "buried" else None
        wanted = place.job(mode="claims", store="memory:", options=options, until_end=False, poison=poison)
        interrupted = replace(soon_missed(wanted), interrupt=(step, before, signal.SIGSTOP))
        started.append((place, wanted, place.start(interrupted)))
    stopped = [Stopped.at(place, process) for place, _, process in started]
    others = [place.start(wanted) for place, wanted, _ in started]
    for each in stopped:
        eventually(each.place.effects, lambda effects: effects[-1:] == EVENTS[-1:], "the new owner's effects")
    for each in stopped:
        each.process.signal(signal.SIGCONT)
    for each in stopped:
        each.process.until_it_says("lost to other readers")  # behind the batch that it had in hand
        each.place.send(["more"])
        eventually(each.place.effects, lambda effects: "more" in effects, "what came after")
    assert [reader.stop() for reader in (*others, *(each.process for each in stopped))] == [0] * 2 * len(STEPS)
    found = dict(zip(STEPS, ([*each.place.effects()] for each in stopped), strict=True))
    assert found == dict(zip(STEPS, ([*each.expected, "more"] for each in stopped), strict=True))
    written = [letters(each.place, read) for each in stopped]
    assert written == [[POISON.encode()] * 2 if each.poison else [] for each in stopped], "by both"


@pytest.mark.parametrize("step", ["revoked"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stopped_while_a_partition_is_taken_from_it_nothing_repeats(places: Places, protocol: str, step: str) -> None:
    """A second reader comes, so one partition is to go; in the callback it is stopped, and loses both. Kafka has heard of all."""
    options = {"group_protocol": protocol, "batch_size": 10}
    place = places(2)
    place.send(range(40))
    wanted = place.job(mode="claims", store="memory:", options=options, until_end=False)
    stopped = place.start(replace(soon_missed(wanted), interrupt=(step, 0, signal.SIGSTOP)))
    eventually(place.committed, {0: 20, 1: 20}.__eq__, "what the first has told")
    other = place.start(wanted)
    stopped.until_stopped()
    place.send(range(40, 80))
    eventually(lambda: len(set(place.effects())), (80).__eq__, "effects of the second, in both partitions")
    stopped.signal(signal.SIGCONT)
    place.send(range(80, 120))
    eventually(lambda: len(set(place.effects())), (120).__eq__, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0), stopped.said()
    assert sorted(map(int, place.effects())) == list(range(120))
    assert place.committed() == {0: 60, 1: 60}


class Trusting(MemoryStore):
    """The undefended variant: it says that others use it too, so it alone is asked."""

    capabilities = replace(MemoryStore.capabilities, shared=True)


@pytest.mark.parametrize(
    ("protocol", "store"),
    [("classic", MemoryStore), ("consumer", MemoryStore), ("classic", Trusting)],
    ids=["classic", "consumer", "control: its store alone"],
)
def test_slower_than_its_group_waits_it_handles_nothing_that_the_next_reader_has_handled(
    place: Place, protocol: str, store: type[MemoryStore]
) -> None:
    """It was not stopped: it has held up its loop for longer than ``max_poll_interval_s``. The next reader has left by then, so
    the group is empty: one in which Kafka takes a commit of whoever is no member of any.
    """
    place.send(EVENTS)
    options = {"group_protocol": protocol, "batch_size": 10}
    is_late = {"max_poll_interval_s": SESSION_TIMEOUT_S, **PROTOCOLS[protocol]}
    has_polled, go_on = threading.Event(), threading.Event()

    def hold(step: Step) -> None:
        """With its second batch in hand, and the first one told: put out before that, it begins anew."""
        if step is not Step.POLLED or has_polled.is_set() or not slow_has:
            return
        if place.committed().get(0, 0) == len(slow_has):
            has_polled.set()
            assert go_on.wait(TIMEOUT_S)

    slow, slow_has = handling(place.reader(store=store(), on_step=hold, **{**options, **is_late}))
    thread = threading.Thread(target=slow.run, kwargs={"until_end": True}, daemon=True)
    thread.start()
    assert has_polled.wait(TIMEOUT_S)
    before = [*slow_has]
    quick, quick_has = handling(place.reader(store=MemoryStore(), **options))
    quick.run(until_end=True)
    assert [*before, *quick_has] == EVENTS
    assert before
    go_on.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert (slow_has == before) is (store is MemoryStore)
    assert place.committed() == {0: len(EVENTS)}


def handling(reader: Reader) -> tuple[Reader, list[str]]:
    """And what it handles."""
    seen: list[str] = []
    reader.handler(lambda event: seen.append((event.value or b"").decode()))
    return reader, seen
