"""How a question is put until it is answered: of whom, and which part of it again, as talks (``talk.py``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from onceflow.errors import BrokerUnreachable, TopicMissing
from onceflow.kafka.client import GROUP, Again, Topic
from onceflow.transaction.messages import (
    Audited,
    Counts,
    Event,
    Identity,
    ProgressRead,
    Refused,
    SourcesRead,
    Stored,
    WriteFailed,
)
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import (
    At,
    Committed,
    Question,
    Questions,
    UnknownTopic,
    describe_producers,
    read_held,
)
from onceflow.transaction.talk import Forget, Leaders, Pace, Talk, ToCoordinator, ToLeader, repeated

T = TypeVar("T")

_UNKNOWN_FOR = 4  # the part of the patience with which a topic is waited for: of 120 s, 30

# ----------------------------------------------------------------------------------------------------------- questions


@dataclass(frozen=True, slots=True)
class Asking:
    """The talks of the commit algorithm, one method for each effect that asks a coordinator or a partition leader."""

    questions: Questions
    pace: Pace

    def describe(self, settle: bool) -> Talk[Event]:
        """DescribeTransactions; with ``settle`` until the transaction is no longer completing."""
        return self.ask(self.questions.describe(settle=settle))

    def initialise(self, expected: Identity | None) -> Talk[Event]:
        """InitProducerId: aborts what is open, then answers with a fresh epoch."""
        return self.ask(self.questions.initialise(expected))

    def end(self, identity: Identity, commit: bool) -> Talk[Event]:
        """EndTxn, or the InitProducerId that aborts on version 1; the same request until it is answered."""
        return self.ask(self.questions.end(identity, commit=commit))

    def read_progress(self) -> Talk[Event]:
        """OffsetFetch, once no transaction on the group is open."""
        return self.ask(self.questions.progress())

    def read_committed(self, *, stable: bool) -> Talk[Committed]:
        """The progress record and the committed source offsets; ``stable`` waits for an open transaction on them to end."""
        found = yield from self.ask(self.questions.committed(stable=stable))
        assert isinstance(found, Committed), found
        return found

    def read_claimed(self, claimed: Progress | None) -> Talk[Committed]:
        """As a stable ``read_committed``, once the progress is what this driver has claimed. Raises BrokerUnreachable.

        ::

            driver 1 commits batches 0 to 5, and its checkpoint is lost; the user resumes, and the new driver claims
            asked where that ended, a coordinator that was replaced tells of batch 3
            compared with that, a query that begins behind batch 5 is refused, and one that begins behind batch 3 goes on
        """
        name = self.questions.id
        final = BrokerUnreachable(
            f"group {name}: each answer tells of other progress than this driver has claimed: who answers was replaced as the "
            "group's coordinator, and has not heard of that",
            action="see that the brokers reach each other, then start again: nothing is lost",
        )

        def once() -> Talk[Committed]:
            found = yield from _asked(self.questions.committed(stable=True))
            assert isinstance(found, Committed), found
            if found.progress == claimed:
                return found
            yield Forget(GROUP)
            raise Again("other progress is committed than was claimed", final=final)

        return repeated(once, "OffsetFetch", self.pace)

    def forget_group(self) -> Talk[None]:
        """Whoever coordinates the group is looked up before it is asked again: it may have been replaced."""
        yield Forget(GROUP)

    def read_sources(self) -> Talk[Event]:
        """The progress, and of the source offsets those that the newest batch committed: others are of topics read no more."""
        found = yield from self.read_committed(stable=True)
        return SourcesRead(found.progress, tuple(sorted((at, found.offsets[at]) for at in found.newest)))

    def store(
        self, identity: Identity, progress: Progress, source: Mapping[At, int], read: ProgressRead | None = None
    ) -> Talk[Event]:
        """TxnOffsetCommit of the progress record and of source offsets. Raises TopicMissing.

        Where other progress is committed than was ``read``, that is the answer.
        """
        for question in self.questions.store(identity, progress, source):
            event = yield from self._ask_of_topics(question, read if question.kind == GROUP else None)
            if not isinstance(event, Stored):
                break
        return event

    def _asked_of_who_leads(self, question: Question[Event], read: ProgressRead | None) -> Talk[Event]:
        """And ``read`` is what is committed there: whoever accepts an offset has all that was committed before (``protocol.py``).

        Both of the same coordinator: one that has moved is looked up before the first, never between the two.
        """
        event = yield from _asked(question)
        if read is None or not isinstance(event, Stored):
            return event
        committed = yield from _asked(self.questions.progress(stable=False))
        return event if committed == read else committed

    def audit(self, identity: Identity, counts: Counts) -> Talk[Event]:
        """DescribeProducers: LastSequence + 1 of our identity is the number of records the leader holds."""
        held: dict[At, int] = {}
        yield from repeated(lambda: _audited(identity, set(counts) - set(held), held), "DescribeProducers", self.pace)
        return Audited(held)

    def _ask_of_topics(self, question: Question[Event], read: ProgressRead | None) -> Talk[Event]:
        """As ``ask``, but a topic that is not known is waited for with a part of the patience: one that is new is known soon.

        ::

            somebody deletes the topic of the progress, which holds no record; the driver that runs commits its next offsets
            asked again and again, its transaction would stay open all the while, and its readers wait for nothing
        """
        since: list[float] = []

        def once() -> Talk[Event]:
            try:
                return (yield from self._asked_of_who_leads(question, read))
            except UnknownTopic as unknown:
                since.append(self.pace.now())
                if since[-1] - since[0] < self.pace.patience / _UNKNOWN_FOR:
                    raise
                raise TopicMissing(
                    f"topic {unknown.topic} does not exist any more: no offset of it can be committed",
                    action="start again, in a new process or with a new sink: what is known of the progress is told then",
                    topics=(unknown.topic,),
                ) from unknown

        return repeated(once, type(question.request).__name__, self.pace)

    def ask(self, question: Question[T]) -> Talk[T | Refused | WriteFailed]:
        """Asks until there is an answer that can be read."""
        return repeated(lambda: _asked(question), type(question.request).__name__, self.pace)


def _asked(question: Question[T]) -> Talk[T | Refused | WriteFailed]:
    answer = yield ToCoordinator(question.kind, question.request)
    try:
        return question.read(answer)
    except Again as again:
        if again.moved:
            yield Forget(question.kind)
        raise


def _audited(identity: Identity, rest: Collection[At], held: dict[At, int]) -> Talk[None]:
    """Asks the leaders of the partitions that none has answered for yet; adds to ``held`` what they say."""
    named = frozenset(topic for topic, _ in rest)
    topics: Mapping[str, Topic] = yield Leaders(named)
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, partition in sorted(rest):
        if partition not in topics[topic].leaders:
            held[topic, partition] = 0  # the topic was made anew with fewer partitions
            continue
        by_leader.setdefault(topics[topic].leaders[partition], {}).setdefault(topic, []).append(partition)
    try:
        for leader, wanted in by_leader.items():
            read_held((yield ToLeader(leader, describe_producers(wanted))), identity, held)
    except Again as again:
        if again.moved:
            yield Leaders(named, refresh=True)
        raise
