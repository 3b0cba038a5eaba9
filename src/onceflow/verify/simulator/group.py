"""Model of the group coordinator: committed offsets, and those of open transactions (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onceflow.transaction.messages import Identity
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.requests import (
    INVALID_PRODUCER_EPOCH,
    NO_SOURCES,
    OK,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    Answer,
    CommitOffsets,
    Committed,
    FetchOffsets,
    Request,
    Sources,
    sources_at,
)


class Group:
    """The offsets of one pipeline's group."""

    def __init__(self) -> None:
        self.committed = Committed()
        self.reached = 0  # the source offset that was committed last, whatever became of it
        self.watch: Callable[[Committed], object] = lambda committed: None  # hears of each commit right before it
        self.has_topic = True  # that of the progress
        self._pending: dict[int, Committed] = {}
        self._epochs: dict[int, int] = {}

    def begin_with(self, source: int) -> None:
        """A source offset was committed before the run, without progress."""
        self.committed, self.reached = Committed(sources=sources_at(source)), source

    def is_open(self, identity: Identity) -> bool:
        return identity.producer_id in self._pending and self._epochs[identity.producer_id] == identity.epoch

    def is_fenced(self, identity: Identity) -> bool:
        return identity.epoch < self._epochs.get(identity.producer_id, -1)

    def commit(self, request: CommitOffsets) -> Answer:
        """Takes offsets into the open transaction; none of a topic that is not there, nor of a partition that is refused."""
        if self.is_fenced(request.identity):
            return INVALID_PRODUCER_EPOCH
        pid = request.identity.producer_id
        before = self._pending.get(pid, self.committed)
        sources, notes = before.sources, before.notes
        if request.sources != NO_SOURCES:
            sources, notes = _taken(request, before)
        self._epochs[pid] = request.identity.epoch
        self._pending[pid] = Committed(request.progress if self.has_topic else None, sources, notes)
        return OK

    def told(self, request: CommitOffsets, answer: Answer) -> Answer:
        """The coordinator's answer, but for the progress whose topic is not there, and for source partitions that are refused."""
        refused = (None if self.has_topic else UNKNOWN_TOPIC_OR_PARTITION, *request.refused)
        if not any(refused):
            return answer
        asked = (0, *request.sources)
        parts = tuple(own or answer for own, offset in zip(refused, asked, strict=True) if offset is not None)
        return Answer(max(part.code for part in parts), parts=parts)

    def mark(self, identity: Identity, commit: bool) -> None:
        """The transaction's marker: its offsets are committed, or dropped."""
        pending = self._pending.pop(identity.producer_id, None)
        self._epochs[identity.producer_id] = max(identity.epoch, self._epochs.get(identity.producer_id, -1))
        if commit and pending is not None:
            self.watch(pending)
            self.committed = pending
            if pending.source > 0:  # a claim brings none
                self.reached = pending.source

    def fetch(self, request: FetchOffsets) -> Answer:
        """OffsetFetch; while a transaction holds what is asked for, a stable answer has to wait, and another one is without that.

        Everything is what is committed already: what a transaction holds for the first time is neither there nor unstable.
        """
        known, pending = self.committed, self._pending.values()
        has_sources = known.sources != NO_SOURCES
        source = has_sources and any((p.sources, p.notes) != (known.sources, known.notes) for p in pending)
        if request.stable and pending and (request.by_name or known.progress is not None or source):
            reach("group: offsets are unstable")
            return UNSTABLE_OFFSET_COMMIT
        return Answer(committed=Committed(known.progress, foreign=known.foreign) if request.by_name else known)

    def as_of_now(self) -> Group:
        """What a coordinator has that hears no more."""
        found = Group()
        found.committed, found._pending = self.committed, dict(self._pending)
        return found

    def tell(self, request: Request) -> Answer | None:
        """The answer of one that was replaced: none, where something has to be accepted for it."""
        if not isinstance(request, FetchOffsets):
            reach("group: who was replaced accepts nothing")
            return None
        reach("group: who was replaced tells what it knows")
        return self.fetch(request)

    def expire(self) -> None:
        """``producer.id.expiration.ms`` has passed: forgets the epochs of every producer without an open transaction."""
        self._epochs = {pid: epoch for pid, epoch in self._epochs.items() if pid in self._pending}

    def forget(self) -> bool:
        """``offsets.retention.minutes`` has passed; never while a transaction holds offsets."""
        if self._pending or self.committed == Committed():
            return False
        self.committed = Committed()
        return True

    def forget_sources(self) -> bool:
        """They expire alone where each start of a driver that fails claims the progress anew."""
        if self._pending or self.committed.sources == NO_SOURCES:
            return False
        self.committed = Committed(self.committed.progress, foreign=self.committed.foreign)
        return True

    def reset_sources(self) -> bool:
        """A tool of Kafka's commits them where they are (``kafka-consumer-groups --reset-offsets --to-current``): without a note.

        It does so while nobody runs; here, while no transaction holds offsets.
        """
        if self._pending or not any(self.committed.notes):
            return False
        self.committed = replace(self.committed, notes=("", ""))
        return True

    def delete_topic(self) -> bool:
        """Somebody deletes the topic of the progress, which holds no record: what is committed on it goes with it.

        Here only while no transaction holds offsets: what becomes of those is not modelled.
        """
        if self._pending or self.committed.progress is None:
            return False
        self.committed, self.has_topic = replace(self.committed, progress=None), False
        return True

    def rewrite(self, foreign: str | None) -> None:
        """Somebody puts other metadata beside the committed offset, or (None) takes it back."""
        self.committed = replace(self.committed, foreign=foreign)

    @property
    def hanging(self) -> bool:
        return bool(self._pending)


def _taken(request: CommitOffsets, before: Committed) -> tuple[Sources, tuple[str, str]]:
    """A transaction's source offsets, and what stands beside them, with those of the request that nobody refuses."""
    (new, other), (refused, other_refused) = request.sources, request.refused
    (sources, others), (note, other_note) = before.sources, before.notes
    if new is not None and refused is None:
        sources, note = new, request.note
    if other is not None and other_refused is None:
        others, other_note = other, request.note
    return (sources, others), (note, other_note)
