"""One run: a broker, a checkpoint, an input, drivers that come and go, and who restarts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onceflow.kafka.client import GROUP, TRANSACTION
from onceflow.transaction.going_on import offsets_tell_of_a_commit
from onceflow.transaction.progress import Batch, OnMismatch, Progress
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.questions import Committed as Found
from onceflow.transaction.questions import Questions
from onceflow.verify.simulator.anomalies import Anomaly, Shown
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.checkpoint import Checkpoint
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.client import Client
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.driver import Driver, Fate, Machine
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.reader import Reader
from onceflow.verify.simulator.requests import TORN, Committed, InitProducerId, driver_of, instance_of
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.scheduler import Process, Scheduler
from onceflow.verify.simulator.wire import offsets_of
from onceflow.verify.simulator.writer import Output, Rules, Writer

ROUND = 10
REPLACED_FOR = (60, 250, 800)
MOST_DRIVERS = 30
MOST_EVENTS = 20_000
PATIENCE_AFTER_FAULTS = 4000
PARTITIONS = 2
STRANGER = -1
FOREIGN = ("", "reset by hand", '{"v": 2}')
"""What may stand beside the committed offset that no onceflow of this version wrote."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What is simulated: the production protocol, or something that lacks one of its defences (``variants.py``)."""

    machine: Callable[[Settings], Machine] = Protocol
    questions: type[Questions] = Questions
    rules: Rules = Rules()  # noqa: RUF009  frozen
    looks_again: bool = True  # for a coordinator that has moved
    trusts_offsets: bool = True  # source offsets that were committed with progress prove that there was some
    compares_new_names: bool = True  # a name without progress with the source offsets that are committed under it
    compares_beginnings: bool = True  # what is told of where a query begins with the progress that was claimed


class World:
    """Runs to its end by ``run``; then ``anomalies`` say what went wrong on the way, ``judge.py`` what at the end."""

    def __init__(self, scenario: Scenario, choices: Choices, variant: Variant, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.choices = choices
        self.anomalies: list[Shown] = []
        self.trace: list[str] = []
        self.done = False
        self._at_rest = False  # nobody looks whether a driver is missing any more
        self._variant = variant
        self._tracing = tracing
        self._scheduler = Scheduler()
        self.broker = Broker(self._scheduler, choices, scenario.version, PARTITIONS, scenario.first_epoch)
        self.broker.restarts_leaders = scenario.restarts_leaders
        self.broker.verifies = scenario.verifies
        self.broker.transactions.follows_next = scenario.follows_next
        self.readers = [
            Reader(number, partition, self._scheduler, self.anomaly)
            for number, partition in enumerate(self.broker.partitions)
        ]
        self.checkpoint = Checkpoint(self._scheduler, choices, "q1", 0)
        self._queries = 1
        self._plans: dict[tuple[str, int], set[int]] = {}
        self._offered: set[tuple[str, int, str]] = set()
        self.allowed = OnMismatch.REFUSE
        self._usually_allowed = OnMismatch.REFUSE
        self._started = 0
        self._living: set[int] = set()
        self.progress_expired = False
        self._expired_under = ""  # the query that had the checkpoint when the progress was last lost
        self._begins_anew = False  # a user has restarted, and since then no batch was committed
        if scenario.at_least_once:
            if scenario.resumes:
                self.allowed = self._usually_allowed = OnMismatch.RESUME
            self.broker.begin_with(scenario.at_least_once, scenario.silent)
        self.leaps: list[tuple[int, int]] = []  # from where the output had got to, to where it begins again
        self._taken: dict[tuple[int, str, int, int], int] = {}  # where batches start that nothing was compared with
        self.broker.group.watch = self._committed

    # ------------------------------------------------------------------------------------------------ what drivers tell

    def note(self, driver: int, text: str, *parts: object) -> None:
        """A line of the trace. ``parts`` become text only where somebody reads it: few runs are traced, and all come by here."""
        if self._tracing:
            self.trace.append(f"{self._scheduler.now:6} driver {driver}: {text.format(*parts)}")

    def anomaly(self, anomaly: Anomaly, *known: object) -> None:
        """Something happened that never may."""
        shown = anomaly.shown(*known)
        self.anomalies.append(shown)
        if self._tracing:
            self.trace.append(f"{self._scheduler.now:6} ANOMALY: {shown}")

    def planned(self, query_id: str, number: int, end: int) -> None:
        """A driver planned a batch. Two plans of one batch explain a conflict."""
        self._plans.setdefault((query_id, number), set()).add(end)

    def offered(self, batch: Batch) -> None:
        """A driver offers a batch to its machine."""
        self._offered.add((batch.query_id, batch.id, batch.end))

    def ends_with(self, progress: Progress, end: int) -> bool:
        """Whether the newest batch in ``progress`` is one that somebody offered, and that ends there."""
        newest = progress.next_batch - 1
        return progress.end_of(newest) == str(end) and (progress.query_id, newest, str(end)) in self._offered

    # ----------------------------------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Until everything has come to rest, or does not."""
        for _ in range(self.scenario.drivers):
            self._start_driver()
        self._scheduler.after(ROUND, self._round)
        while self._scheduler.step():
            if self._scheduler.happened > MOST_EVENTS:
                self.anomaly(Anomaly.NO_END, MOST_EVENTS)
                return

    def _round(self) -> None:
        """What happens without a driver: the faults of the surroundings, and somebody who starts drivers."""
        scenario, now = self.scenario, self._scheduler.now
        self.choices.quiet = now > scenario.faults_until
        if now > scenario.faults_until + PATIENCE_AFTER_FAULTS:
            self.anomaly(Anomaly.STUCK)
            return
        self._surroundings()
        if not self._living and not self.done:
            self._start_driver()
        self._at_rest = self.done and not self._living
        if not self._at_rest:
            self._scheduler.after(ROUND, self._round)

    def _surroundings(self) -> None:
        pick = self.choices.pick
        match pick("move", 3 + PARTITIONS):
            case 1:
                self.broker.move_coordinator()
            case 2:
                self.broker.move_group()
            case number if number:
                self.broker.move_leader(number - 3)
        if how_long := pick("replaced", 1 + len(REPLACED_FOR)):
            self.broker.replace_group(REPLACED_FOR[how_long - 1])
        if how_long := pick("outdated", 1 + len(REPLACED_FOR)):
            self.broker.replace_coordinator(REPLACED_FOR[how_long - 1])
        self._expire(pick("expire", 3))
        if pick("hijack", 2):
            reach("broker: a stranger takes the transactional id")
            self.broker.ask(InitProducerId(None, STRANGER))
        if pick("second", 2) and len(self._living) < 2 and not self.done:
            reach("driver: a second one starts")
            self._start_driver()
        self._by_hand(pick("people", 7 + len(FOREIGN)))

    def _expire(self, what: int) -> None:
        if what == 1 and self.broker.transactions.forget():
            reach("broker: the transactional id expires")
        if what == 2:
            self.broker.expire_producers()

    def _by_hand(self, what: int) -> None:
        """What people do to the cluster, or leave undone for so long that the offsets expire."""
        if what == 1 and self.broker.group.forget():
            reach("group: the committed offsets expire")
            self._lose_progress()
        elif what == 2:
            self.broker.shorten_transactions()
        elif what == 3:
            self.broker.compact()
        elif what == 4 and self.broker.group.forget_sources():
            reach("group: the source offsets expire, the progress does not")
        elif what > 4:
            self._rewrite(what - 5)

    def _rewrite(self, what: int) -> None:
        """What people do to the committed offsets, or to the topic that they are of."""
        if what < len(FOREIGN):
            self.broker.rewrite_progress(FOREIGN[what])
        elif what == len(FOREIGN) and self.broker.group.delete_topic():
            reach("people: the topic of the progress is deleted")
            self._lose_progress()
        elif what > len(FOREIGN) and self.broker.group.reset_sources():
            reach("people: the source offsets are committed by a tool")

    def _lose_progress(self) -> None:
        self.progress_expired, self._expired_under = True, self.checkpoint.query_id

    def _start_driver(self) -> None:
        if self._started >= MOST_DRIVERS:
            self.anomaly(Anomaly.TOO_MANY_DRIVERS, MOST_DRIVERS)
            self.done = True
            return
        self._started += 1
        order, scheduler = self._started, self._scheduler
        scenario, version, variant = self.scenario, self.scenario.version, self._variant
        self.broker.group.has_topic = True  # as ``ensure_anchor_topic``
        planned = scenario.claims_first and bool(self.checkpoint.offsets)
        proven = self._offsets_prove_progress()
        known = planned or (proven and variant.trusts_offsets)
        settings = Settings(instance_of(order), version >= 2, self.allowed, max_attempts=3, planned=known)
        network = Network(scheduler, self.choices, self.broker)
        questions = variant.questions("simulated", version, timeout_ms=60_000)
        client = Client(scheduler, network, questions, order, looks_again=variant.looks_again)
        output = Output(
            version, PARTITIONS, scenario.by_driver, scenario.batch_bytes, scenario.records_each, scenario.silent
        )
        writer = Writer(scheduler, network, self.choices, order, output, variant.rules)
        driver = Driver(self, order, variant.machine(settings), client, writer, planned=planned or proven)
        self._living.add(order)
        self.allowed = self._usually_allowed
        Process(scheduler, driver.life(), partial(self._ended, driver))

    def _offsets_prove_progress(self) -> bool:
        """As ``Driver._has_committed``."""
        return offsets_tell_of_a_commit(self.allowed, self._found)

    def _found(self) -> Found:
        """What a start finds committed."""
        committed = self.broker.look_up_group().committed
        offsets = offsets_of(committed.sources)
        plain = frozenset(at for at in offsets if not committed.notes[at[1]])
        return Found(committed.progress, offsets, plain=plain)

    def _ended(self, driver: Driver, fate: Fate) -> None:
        self.note(driver.order, "ended: {}", fate.value)
        self._living.discard(driver.order)
        self.broker.standing.has_ended(driver.order)
        match fate:
            case Fate.DONE:
                self.done = True
            case Fate.FENCED:
                self._check_fenced(driver)
            case Fate.CONFLICT | Fate.TORN if driver.checkpoint is self.checkpoint:
                misled = (GROUP, driver.order) in self.broker.standing.misled
                self._check_conflict(resumes=driver.resumes, misled=misled)
                self._choose(fate)
            case _:
                pass

    def _check_fenced(self, driver: Driver) -> None:
        """The newest driver goes on, but where it cannot know that it is the newest (``Standing``, ``Transactions.in_doubt``)."""
        standing = self.broker.standing
        if driver.order != standing.newest:
            reach("driver: an older one stops")
        elif self.broker.transactions.in_doubt:
            reach("driver: the newest stops, for it cannot know that it is")
        elif driver.order in standing.displaced:
            reach("driver: the newest stops, for an older one has fenced it that could not know")
        elif self.broker.was_told_of_an_older_claim(driver.order):
            reach("driver: the newest stops, for it was told of an older claim")
        elif (TRANSACTION, driver.order) in standing.misled:
            reach("driver: the newest stops, for it was told of an older identity")
        else:
            self.anomaly(Anomaly.NEWEST_STOPPED)

    def _check_conflict(self, *, resumes: bool, misled: bool = False) -> None:
        """It has a cause: a batch planned twice, a damaged file, a commit after the user looked where to resume, no progress; or
        somebody ``resumes`` from offsets that do not tell where, or was told of what was committed once (``misled``). Under this
        checkpoint: what an older one saw explains nothing.
        """
        ours = self.checkpoint.query_id
        planned_twice = any(len(ends) > 1 for (query_id, _), ends in self._plans.items() if query_id == ours)
        committed = self.broker.group.committed
        begun = committed.progress is not None and committed.progress.query_id
        without_progress = bool(committed.source) and not begun
        overtaken = committed.source != self.checkpoint.initial and (
            without_progress or not self._is_ours(committed.progress)
        )
        astray = resumes and self._nobody_can_resume
        if misled:
            reach("driver: finds a conflict with what was committed once")
        elif not (planned_twice or self.checkpoint.damaged or overtaken or self._expired_under == ours or astray):
            self.anomaly(Anomaly.CONFLICT)

    def _is_ours(self, progress: Progress | None) -> bool:
        return progress is None or progress.query_id in ("", self.checkpoint.query_id)

    def _choose(self, fate: Fate) -> None:
        """The user resumes or restarts: a torn checkpoint cannot be taken as it is, and without progress that is all there is."""
        self.done = self.done and not self.progress_expired  # what another driver took for done is in doubt
        if fate is Fate.CONFLICT and (self.scenario.user_restarts or self._nobody_can_resume):
            reach("user: restarts with the checkpoint as it is")
            self.allowed, self._begins_anew = OnMismatch.RESTART, True
        else:
            self._resume()

    @property
    def compares_new_names(self) -> bool:
        """Whether a driver whose name has no progress looks for source offsets. Only ``at_least_once`` leaves such; there is no
        need to spend a request on it elsewhere.
        """
        return bool(self.scenario.at_least_once) and self._variant.compares_new_names

    @property
    def compares_beginnings(self) -> bool:
        """Whether a driver doubts who tells it where a query has to begin."""
        return self._variant.compares_beginnings

    @property
    def _nobody_can_resume(self) -> bool:
        """Whether what is committed does not tell where the output ends."""
        group = self.broker.group
        progress, source = group.committed.progress, group.committed.source
        of_a_tool = progress is not None and bool(progress.query_id) and not any(group.committed.notes)
        return group.reached > 0 and (not source or of_a_tool or self.scenario.readings_differ)

    def resumed(self, found: Found) -> None:
        """A driver goes on where the offsets that it ``found`` say that another query has ended. They have to tell."""
        begun = found.progress is not None and bool(found.progress.query_id)
        if begun and not found.notes:
            self.anomaly(Anomaly.RESUMED_UNCOMMITTED)
        if self.scenario.readings_differ and (begun or found.notes):
            self.anomaly(Anomaly.RESUMED_DIFFERENT)

    def may_begin_anew(self, *, planned: bool) -> bool:
        """Whether nothing tells a batch 0 from the first that there ever was: the progress has expired, and the driver did not
        know when it claimed the name that there had been some (``planned``), or a user has taken the name for a new one since.
        """
        return self.progress_expired and (self._begins_anew or not planned)

    def is_through(self, end: int) -> bool:
        """Whether a driver whose input ends there is done. If not all of it is committed, what it offers next has to show it."""
        doubtful = self.checkpoint.damaged or self.progress_expired
        return not doubtful or end == self.broker.group.reached

    def taken_as_it_is(self, driver: int, batch: Batch, start: int, known: Progress | None) -> None:
        """Somebody offers a batch that nothing is compared with. Unless it is the next one, the output begins again there, once
        it is committed; one that is committed already is skipped, as the driver has ``known`` since its start.

        A user restarts, or it is batch 0 and ``may_begin_anew``. The group may know less than the driver::

            driver    reads that batch 0 is committed; somebody deletes the topic of the progress; it claims, and is answered
            driver    offers batch 0, and skips it
            group     gets the marker of the claim: progress whose newest batch is that one, and nothing begins again
        """
        if start != self.broker.group.reached:
            self.done = False
        if known is None or not known.contains(batch):
            self._taken[driver, batch.query_id, batch.id, int(batch.end)] = start

    def _committed(self, committed: Committed) -> None:
        """A batch that was taken as it is begins the output again, once; a claim or a renewal of its progress does not.

        Whose it is matters: another driver may have planned a batch of that number and end from another start. One of a mixed
        checkpoint may end before it starts: it holds nothing, and the next one starts at its end::

            driver 2  plans batch 2 to end at 9, and is killed; its file is late
            driver 3  plans it to end at 7, commits it, and plans batch 3 to end at 8; then the late file replaces that of batch 2
            driver 3  offers batch 3 again, from 9 to 8, and is told that it does not fit; a user takes the checkpoint as it is
            driver 4  commits batch 3 without records, and then batch 4, from 8 to 9
        """
        if committed.source == TORN:
            self.anomaly(Anomaly.TORN_SOURCES, committed.sources)
        progress = committed.progress
        if progress is None:
            return
        self.broker.standing.has_committed(committed.claim)
        self._begins_anew = self._begins_anew and not progress.query_id
        start = self._taken.pop(
            (driver_of(committed.claim), progress.query_id, progress.next_batch - 1, committed.source), None
        )
        if start not in (None, self.broker.group.reached):
            reach("user: the output begins again")
            self.leaps.append((self.broker.group.reached, min(start, committed.source)))
            self._go_on()

    def _go_on(self) -> None:
        """Somebody finds that the output has begun again, and sees it through.

        ::

            driver 4  begins again at batch 0, for its progress has expired; its commit is answered, its marker is under way
            driver 6  finds a checkpoint and offsets of which all is committed: there is nothing to do for it
            driver 4  is killed behind batch 1: whoever believes driver 6 takes the rest for lost
        """
        self.done = False
        if self._at_rest:
            self._at_rest = False
            self._scheduler.after(ROUND, self._round)

    def _resume(self) -> None:
        """The user resumes: a new checkpoint that starts at the committed offsets, or, if those are gone, as the old one says."""
        reach("user: resumes with a new checkpoint")
        self._queries += 1
        self.allowed = self._usually_allowed = OnMismatch.RESUME
        initial = max(self.broker.look_up_group().committed.source, 0) or self.broker.group.reached
        self.checkpoint = Checkpoint(self._scheduler, self.choices, f"q{self._queries}", initial)
