"""Drives the commit protocol: performs each effect of the pure machine and feeds the answer back. Runs on the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from onceflow.errors import (
    AttemptsExhausted,
    BrokerUnreachable,
    Fenced,
    InputError,
    OnceflowError,
    OutcomeUnknown,
    ProgressConflict,
    ProgressGone,
)
from onceflow.first_line import first_line_of
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import (
    Audit,
    Counts,
    Describe,
    Effect,
    End,
    Event,
    Halt,
    Identity,
    Initialise,
    Offered,
    ProgressRead,
    ReadProgress,
    ReadSources,
    Ready,
    Refused,
    Renew,
    Start,
    Stop,
    Store,
    Unreachable,
    Write,
    WriteFailed,
    Written,
)
from onceflow.transaction.progress import Batch, Progress, SourceOffsets
from onceflow.transaction.protocol import Protocol as Machine
from onceflow.transaction.protocol import State, tolerated_claims
from onceflow.transaction.requests import ANCHOR_TOPIC, Requests, transactional_id

log = logging.getLogger(__name__)

Asked_co = TypeVar("Asked_co", covariant=True)

WriteBatch = Callable[[Identity, int], Counts]
"""Steps 3 and 4: writes the whole batch under an identity (second argument: the attempt), returns acknowledged counts."""

RENEWALS = 2  # tries of one

OnStep = Callable[[str, int], None]
"""Told before each effect: the step's name and the batch id (-1 at the start); and inside WRITE, while the driver writes,
PRODUCE before each produce request. Crash tests and the demo hook in here."""


RETENTION = "offsets.retention.minutes"

_ACTIONS = {
    Stop.FENCED: "nothing, if the other driver is meant to run; otherwise stop it, then start this one again",
    Stop.CONFLICT: "resume (a new checkpoint that starts at the committed offsets) or, to write on purpose again what may "
    "be written already, restart; the committed progress shows with `onceflow status`",
    Stop.GONE: f"the cluster drops it when nothing was committed for {RETENTION}, or somebody deleted it. Where source offsets "
    "are still committed (`onceflow status`), resume: a new checkpoint begins there. Otherwise restart, with starting_offsets "
    "(startingOffsets) where the output ends: what is behind them is written again",
    Stop.EXHAUSTED: "see the cause; the next start runs the batch again",
    Stop.OUTCOME_UNKNOWN: "start again: it finds out whether the batch is committed and finishes it",
    Stop.UNREACHABLE: "check the cluster, then start again: nothing is lost",
}
_ERRORS: dict[Stop, type[OnceflowError]] = {
    Stop.FENCED: Fenced,
    Stop.CONFLICT: ProgressConflict,
    Stop.GONE: ProgressGone,
    Stop.EXHAUSTED: AttemptsExhausted,
    Stop.OUTCOME_UNKNOWN: OutcomeUnknown,
    Stop.UNREACHABLE: BrokerUnreachable,
}


class TransactionCoordinator:
    """One driver's hold on one name. ``start`` once, then ``commit`` per batch; not thread-safe."""

    def __init__(self, requests: Requests, protocol: Machine, on_step: OnStep | None = None) -> None:
        self._requests = requests
        self._protocol = protocol
        self._on_step = on_step or (lambda step, batch_id: None)
        self._cause: Exception | None = None
        self._batch_id = -1

    @property
    def state(self) -> State:
        return self._protocol.context.state

    def start(self) -> None:
        """Fences older drivers, reads the progress and claims it; later, looks whether the name is still ours.

        Raises Fenced, BrokerUnreachable, NotAuthorized, …
        """
        self._run(Start(), {}, _no_write)

    def ensure_started(self) -> None:
        """``start`` where it is needed: the first time, and after an error that left something open."""
        if must_start(self.state):
            self.start()

    def commit(self, batch: Batch, source_offsets: SourceOffsets, write: WriteBatch) -> Ready:
        """Runs steps 1 to 7 for one batch; the answer says whether it was committed now or had been before.

        Raises an OnceflowError, or what ``write`` raised when the batch itself is at fault. Then nothing of it is visible,
        except after OutcomeUnknown, where the next ``start`` finds out.
        """
        self.ensure_started()
        self._batch_id = batch.id
        return self._run(Offered(batch), source_offsets, write)

    def renew(self) -> bool:
        """Commits once more what is committed, before the cluster drops it. Whether it did; if not, a later call may.

        Never takes a name that this driver has not claimed, nor one that it has lost. A second try comes at once: the first may
        have had to look whether the name is still ours, for the coordinator had forgotten it. Raises as ``start``.
        """
        if not self._protocol.context.claimed:
            return False
        self.ensure_started()
        return any(self._run(Renew(), {}, _no_write).committed for _ in range(RENEWALS))

    def _run(self, event: Event, source_offsets: SourceOffsets, write: WriteBatch) -> Ready:
        self._cause = None
        effect = self._protocol.handle(event)
        while not isinstance(effect, Ready | Halt):
            try:
                self._on_step(self.state.name, self._batch_id)
                log.debug("%s: %s", self.state.name, effect)
                effect = self._protocol.handle(self._perform(effect, source_offsets, write))
            except BaseException as error:
                # Nobody foresaw this one (an interrupt, an event that the state has no transition for), so nothing is known of
                # the answer: the next batch looks first, as after a lost one.
                self._protocol.handle(Unreachable(str(error)))
                raise
        if isinstance(effect, Halt):
            raise self._error(effect)
        return effect

    def _perform(self, effect: Effect, source_offsets: SourceOffsets, write: WriteBatch) -> Event:
        """An error is told with the one that came before it::

        a record is too large; the abort is not answered
        that nobody answers is raised, but it is the record that has to be mended
        """
        try:
            if isinstance(effect, Write):
                return self._write(effect, write)
            return asked(self._requests, effect, source_offsets)
        except OnceflowError as error:
            if self._cause is not None:
                error.message = f"{error.message}; before that: {first_line_of(self._cause)}"
            self._cause = error
            return unanswered(self.state, error)

    def _write(self, effect: Write, write: WriteBatch) -> Event:
        try:
            return Written(write(effect.identity, effect.attempt))
        except IdentityRefused as error:
            return unwritten(error)
        except AttemptFailed as error:
            log.warning("batch %d, attempt %d failed: %s", effect.batch.id, effect.attempt, error)
            self._cause = error
            return unwritten(error)
        except Exception as error:  # noqa: BLE001  whatever else stopped the write
            self._cause = error
            return unwritten(error)

    def _error(self, halt: Halt) -> Exception:
        cause = self._cause
        if halt.stop is Stop.REJECTED:
            assert cause is not None, halt
            if isinstance(cause, InputError):
                cause.action = "; ".join(filter(None, [cause.action, "nothing of the batch is visible"]))
            return cause
        if halt.stop is Stop.UNREACHABLE and isinstance(cause, OnceflowError):
            return cause
        name = self._requests.name
        kind = _ERRORS[halt.stop]
        where = f" (group {transactional_id(name)}, topic {ANCHOR_TOPIC})" if halt.stop is Stop.GONE else ""
        at = f", batch {self._batch_id}" if self._batch_id >= 0 else ""  # the start comes before any batch
        message = f"pipeline {name!r}{at}: {halt.stop.value}{where}: {halt.reason}"
        claims = {"claims": tolerated_claims(self._protocol.context)} if kind is Fenced else {}
        error = kind(message, action=_ACTIONS[halt.stop], name=name, batch_id=self._batch_id, **claims)
        error.__cause__ = cause
        return error


class Asks(Protocol[Asked_co]):
    """The requests of the effects: ``Requests``, or what asks in simulated time."""

    def describe(self, settle: bool) -> Asked_co: ...
    def initialise(self, expected: Identity | None) -> Asked_co: ...
    def read_progress(self) -> Asked_co: ...
    def read_sources(self) -> Asked_co: ...
    def audit(self, identity: Identity, counts: Counts) -> Asked_co: ...
    def store(
        self, identity: Identity, progress: Progress, source: SourceOffsets, read: ProgressRead | None
    ) -> Asked_co: ...
    def end(self, identity: Identity, commit: bool) -> Asked_co: ...


def asked(asks: Asks[Asked_co], effect: Effect, source_offsets: SourceOffsets) -> Asked_co:
    """The request of an effect."""
    match effect:
        case Describe(settle):
            return asks.describe(settle)
        case Initialise(expected):
            return asks.initialise(expected)
        case ReadProgress():
            return asks.read_progress()
        case ReadSources():
            return asks.read_sources()
        case Audit(identity, counts):
            return asks.audit(identity, counts)
        case Store(identity, progress, batch, renewed, read):
            return asks.store(identity, progress, source_offsets if batch else dict(renewed), read)
        case End(identity, commit):
            return asks.end(identity, commit)
    raise AssertionError(f"no request for {effect}")


def must_start(state: State) -> bool:
    """Whether the machine has to start before it takes a batch: the first time, and after an error that left something open."""
    return state in (State.NEW, State.BROKEN)


def unanswered(state: State, error: OnceflowError) -> Event:
    """What the machine hears of a request that ended with an error."""
    return Unreachable(error.message) if isinstance(error, BrokerUnreachable) else _denied(state, error.message)


def unwritten(error: Exception) -> Event:
    """What the machine hears of a write that ended with an error.

    What is neither of ours is the batch's own fault: bad input, no answer for as long as allowed, or the user's query failed.
    """
    if isinstance(error, IdentityRefused):
        return Refused(str(error))
    return WriteFailed(terminal=not isinstance(error, AttemptFailed), reason=str(error))


def _denied(state: State, reason: str) -> Event:
    """An answer that no repetition changes (a missing ACL, a deleted topic): the machine aborts what the batch has open.

    In the other states nothing of a batch is open, or its commit was sent and must not be followed by an abort.
    """
    if state in (State.AUDIT, State.STORE):
        return WriteFailed(terminal=True, reason=reason)
    return Unreachable(reason)


def _no_write(identity: Identity, attempt: int) -> Mapping[tuple[str, int], int]:
    raise AssertionError("neither a start nor a renewal writes records")
