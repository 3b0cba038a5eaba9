"""The cluster forgets the pipeline's identity, or comes to the end of its epochs (F16, F17).

Both take a long time by themselves: ids expire after a day and a week of rest, epochs end after some hours of small batches. Here
the log of the transaction coordinator says so at once, see ``cluster.transaction_log``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster.producer_ids import forgetting, known_at_leaders
from onceflow.verify.cluster.transaction_log import Entry, entry_of, replace_entry
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults.driver import SET_TO_WORK, await_end, steps_before_which

if TYPE_CHECKING:
    from onceflow.verify.running.encounters import UnderWay
    from onceflow.verify.running.world import World

LAST_EPOCH = 32_766
"""The largest epoch that a producer is given; the one after it is the broker's own."""

_MOST_LEFT = 6  # epochs, before the last one
_BATCHES = 12  # in which they are used up: a start takes two, and each batch one
_BATCH_S = 120.0
_LIVES_ON = 0.5


@dataclass(frozen=True, slots=True)
class ExpireIds:
    """All forget the pipeline while it rests: the coordinator its transactional id, the leaders its producer id.

    It is the same driver that goes on, waiting right before a step of its next batch, or another one that starts. A comparison
    with the identity before compares nothing any more: an id that is not known is given to whoever asks.
    """

    name: str = "expire-ids"
    text: str = "the pipeline rests, and the cluster forgets its transactional id and its producer id"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        if _entry(world) is None:
            world.missed(f"no coordinator knows {world.transactional_id}")
        elif random.random() < _LIVES_ON:
            self._held(world, random)
        else:
            with world.driver.resting():
                known = _forget(world)
            _tell_what_came(world, f"a driver started when all had forgotten {known}")

    @staticmethod
    def _held(world: World, random: Random) -> None:
        step = _quiet_step(world, random)
        resting = world.driver.hold(step, _BATCH_S) if step else None
        if resting is None:
            world.missed(f"the driver did not come to {step or 'any step'}")
            return
        held_at, known = world.driver.under_way, _forget(world)
        world.driver.go(resting)
        _tell_what_came(world, f"a driver went on right before {step}, when all had forgotten {known}", held_at)


@dataclass(frozen=True, slots=True)
class ExpireIdsOfZombie:
    """A driver sleeps, another one takes over and then rests, all forget both; the first one wakes while the other rests.

    ::

        old          waits right before a step of its commit, without a transaction
        new          takes over, commits, and ends in order
        coordinator  forgets the id: nothing is left there that could tell the old one that it was fenced
        old          wakes, and is given any identity that it asks for. Only what was committed says that another came after it
    """

    name: str = "expire-ids-of-zombie"
    text: str = "a driver sleeps until another one has committed and the cluster has forgotten the ids of both"
    needs: tuple[str, ...] = (SET_TO_WORK,)

    def inject(self, world: World, random: Random) -> None:
        if _entry(world) is None:
            world.missed(f"no coordinator knows {world.transactional_id}")
            return
        driver, step = world.driver, _quiet_step(world, random)
        old = driver.hold(step, _BATCH_S) if step else None
        if old is None:
            world.missed(f"the driver did not come to {step or 'any step'}")
            return
        held_at = driver.under_way
        world.strikes_now()
        driver.replace()
        if not driver.await_batches(1, _BATCH_S):
            world.missed(f"the one that took over committed nothing within {_BATCH_S:.0f} s")
        with driver.resting():
            known = _forget(world)
            driver.go(old)
            await_end(world, old, "the zombie")
        world.met(f"driver {old.generation} woke right before {step}, when all had forgotten {known}", held_at)
        driver.await_batches(1, _BATCH_S)  # until then there is no id that the next fault of a row could strike


@dataclass(frozen=True, slots=True)
class LastEpochs:
    """The producer id has few epochs left: within some batches the coordinator goes on with another producer id.

    The last epoch is given once: who asks for it again, because the answer was lost, is refused each time.
    """

    name: str = "last-epochs"
    text: str = "the epochs of the pipeline's producer id come to their end"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        if _entry(world) is None:
            world.missed(f"no coordinator knows {world.transactional_id}")
            return
        with world.driver.resting():
            old = replace(_settled(world), epoch=LAST_EPOCH - random.randint(0, _MOST_LEFT), state="Empty")
            replace_entry(world.kafka, world.transactional_id, old)
            world.note(f"producer {old.producer_id} is at epoch {old.epoch}")
        for _ in range(_BATCHES):
            new = _entry(world)
            if new is not None and new.producer_id != old.producer_id:
                world.met(f"producer {new.producer_id} follows {old.producer_id}, which began at epoch {old.epoch}")
                return
            if not world.driver.await_batches(1, _BATCH_S):
                break
        world.missed(f"producer {old.producer_id} did not come to its last epoch")


def _entry(world: World) -> Entry | None:
    return entry_of(world.kafka.client, world.transactional_id)


def _settled(world: World) -> Entry:
    """Once no transaction is open: one that a driver has left is over when it times out."""
    found = _entry(world)

    def is_settled() -> bool:
        nonlocal found
        found = _entry(world)
        return found is not None and found.is_settled

    world.wait_for(is_settled, f"no transaction of {world.transactional_id} is open")
    assert found is not None
    return found


def _forget(world: World) -> str:
    """Nobody knows the pipeline any more; gives what they knew, in words."""
    known = _settled(world)
    replace_entry(world.kafka, world.transactional_id, None)
    with forgetting(world.kafka.direct_servers, [node.id for node in world.kafka.nodes]):
        world.wait_for(
            lambda: known.producer_id not in known_at_leaders(world.kafka.client, world.topics_out),
            f"the leaders forget producer {known.producer_id}",
        )
    world.note(f"{world.transactional_id} and producer {known.producer_id} are forgotten")
    return f"producer {known.producer_id}, epoch {known.epoch}"


def _quiet_step(world: World, random: Random) -> str:
    """A step before which no transaction is open, as far as the engine says; an open one would not be forgotten."""
    return random.choice(steps_before_which(world, Transaction.NONE) or world.driver.steps or ("",))


def _tell_what_came(world: World, what: str, at: UnderWay | None = None) -> None:
    """A fault after which nothing was tried any more has met nothing."""
    commits = world.driver.course.commits
    failed = world.driver.await_failure(("",), 1, _BATCH_S)
    if world.driver.course.commits > commits:
        world.met(f"{what}; a batch was committed", at)
    elif failed:
        world.met(f"{what}; it failed", at)
    else:
        world.missed(f"{what}, and nothing came of it within {_BATCH_S:.0f} s")


EXPIRY_FAULTS = (ExpireIds(), ExpireIdsOfZombie(), LastEpochs())
