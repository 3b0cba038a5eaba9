"""The error tree: every error that onceflow raises on purpose.

::

    OnceflowError
    ├── ConfigurationError        a plan or an option is wrong; lists every mistake found
    ├── SetupError                the machine lacks something (Java, a jar, a free port)
    │   ├── JavaError
    │   └── BrokerStartError
    ├── KafkaError                the cluster refused or did not answer
    │   ├── BrokerUnreachable     (retriable)
    │   ├── NotAuthorized
    │   ├── AuthenticationFailed
    │   ├── TopicMissing
    │   └── RequestFailed
    ├── InputError                the rows cannot be written as they are
    │   ├── ColumnError
    │   ├── EventRefused          an event for the writer lacks an identity, or has two
    │   ├── RecordTooLarge
    │   ├── SourceChanged         a file or table is not the one whose position is committed
    │   ├── SourceUnavailable     (retriable) a database that is ingested does not answer
    │   └── SourceUnfinished      (retriable) the newest rows of a source may be incomplete; all before them are written
    ├── TransactionError          the batch transaction cannot go on
    │   ├── Fenced                another driver with the same name took over
    │   ├── Displaced             (retriable) somebody took the transactional id, and not the name
    │   ├── ProgressConflict      checkpoint and committed progress disagree
    │   ├── ProgressGone          the committed progress is gone: it expired, or somebody deleted it
    │   ├── UnsafeSession         the Spark session would break the guarantee
    │   ├── AttemptsExhausted     a batch failed too often; under exactly_once nothing of it is visible
    │   ├── OutcomeUnknown        (retriable) a commit was sent and not answered in time
    │   │   └── OutcomeForgotten  and the cluster has forgotten what would tell
    │   └── Draining              the sink was asked to end after the running batch
    ├── QueryFailed               Spark ended the query for a reason that onceflow does not know
    ├── RestartsExhausted         the driver was lost too often, and no standby made progress either
    ├── WriterError               the writer is used wrongly, or cannot go on
    │   ├── DeliveryFailed        events were not acknowledged; names all of them
    │   ├── TransactionAborted    (retriable) nothing of the block is visible; run it again
    │   └── WriterClosed
    ├── OutboxError               an outbox cannot be relayed
    │   ├── OutboxUnavailable     (retriable) the database does not answer
    │   └── OutboxMismatch        the table is no outbox, or not the one that the relay knows
    ├── DemoError                 the demo could not tell its story to the end
    ├── HistoryInvalid            a recorded history is not what its format says; lists every mistake found
    ├── FunctionInvalid           the function that a history's output is held against cannot be used
    ├── VerificationError         a verification could not be carried out; says nothing about the guarantee
    │   └── PipelineStuck         the pipeline that is verified stands still by itself
    ├── OracleFailed              what a run must have written could not be found out
    ├── ReaderError               a reader cannot go on
    │   ├── HandlerFailed         an event failed too often, and there are no dead letters
    │   ├── EventUnreadable       nobody knows which event a record is, and there are no dead letters
    │   ├── EventsGone            the next event is no longer in its topic
    │   └── ReaderReplaced        another reader with the same group instance id took over
    └── StoreError                a deduplication store cannot go on
        ├── StoreFenced           another reader owns the partition now
        ├── StoreUnavailable      (retriable) the store does not answer
        ├── StoreMismatch         the store was made by something else, or by another version
        ├── StoreLost             the group has handled events that the store does not know
        ├── EffectRefused         Redis refused a handler's command, and cannot undo the others
        └── CommitUnknown         (retriable) the store's commit was sent and not answered

Each error carries a stable ``code``, whether it is ``retriable`` (running the same thing again may help), the ``action``
to take next, and its ``fields``. All of them pickle, because Spark workers raise them.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OnceflowError(Exception):
    """Base of all errors of onceflow: a message, a stable code, fields and the next action."""

    code: ClassVar[str] = "ONCEFLOW"
    retriable: ClassVar[bool] = False
    _is_final: ClassVar[bool] = False

    def __init__(self, message: str, *, action: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.fields = fields

    @property
    def fatal(self) -> bool:
        """Whether the writer or the driver that raised it is at its end: whatever comes next needs a new one."""
        return bool(self.fields.get("fatal", self._is_final))

    def __str__(self) -> str:
        hint = f"\n  What to do: {self.action}" if self.action else ""
        return f"[{self.code}] {self.message}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.action, self.fields))


def _rebuild(kind: type[OnceflowError], message: str, action: str, fields: dict[str, Any]) -> OnceflowError:
    return kind(message, action=action, **fields)


class ConfigurationError(OnceflowError):
    """A plan or an option is wrong. ``fields["mistakes"]`` lists all of them as text."""

    code = "CONFIGURATION"

    @classmethod
    def of(cls, where: str, mistakes: list[str]) -> ConfigurationError:
        """One error that names every mistake found in ``where``."""
        lines = "".join(f"\n  - {mistake}" for mistake in mistakes)
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        return cls(f"{len(mistakes)} {noun} in {where}:{lines}", mistakes=tuple(mistakes), where=where)


class SetupError(OnceflowError):
    """The machine lacks something that onceflow needs."""

    code = "SETUP"


class JavaError(SetupError):
    """Java is missing or too old."""

    code = "JAVA"


class BrokerStartError(SetupError):
    """The embedded broker did not start."""

    code = "BROKER_START"


class KafkaError(OnceflowError):
    """The cluster refused a request or did not answer it."""

    code = "KAFKA"


class BrokerUnreachable(KafkaError):
    """No broker answered in time."""

    code = "BROKER_UNREACHABLE"
    retriable = True


class NotAuthorized(KafkaError):
    """The principal lacks an ACL."""

    code = "NOT_AUTHORIZED"


class AuthenticationFailed(KafkaError):
    """The broker refused the credentials."""

    code = "AUTHENTICATION_FAILED"


class TopicMissing(KafkaError):
    """A topic does not exist."""

    code = "TOPIC_MISSING"


class RequestFailed(KafkaError):
    """The broker answered with an error that nothing here can mend."""

    code = "REQUEST_FAILED"


class InputError(OnceflowError):
    """The rows cannot be written as they are. Under exactly_once nothing of the batch was made visible."""

    code = "INPUT"


class ColumnError(InputError):
    """Columns are missing or have the wrong type."""

    code = "COLUMN"


class EventRefused(InputError):
    """An event for the writer has no identity, or two, or headers that the writer sets itself."""

    code = "EVENT_REFUSED"


class RecordTooLarge(InputError):
    """A record is larger than its topic accepts."""

    code = "RECORD_TOO_LARGE"


class SourceChanged(InputError):
    """A file or table is not the one whose position is committed; going on could lose or repeat rows."""

    code = "SOURCE_CHANGED"


class SourceUnavailable(InputError):
    """A database that is ingested does not answer. All that was committed stays; the next start goes on behind it."""

    code = "SOURCE_UNAVAILABLE"
    retriable = True


class SourceUnfinished(InputError):
    """The newest rows of a source may be incomplete: a last line without an end, an open transaction. All before are written."""

    code = "SOURCE_UNFINISHED"
    retriable = True


class TransactionError(OnceflowError):
    """The batch transaction cannot go on."""

    code = "TRANSACTION"


class Fenced(TransactionError):
    """Another driver with the same name took over; this one stops and never fences back."""

    code = "FENCED"
    _is_final = True


class Displaced(TransactionError):
    """Somebody took the transactional id of a driver, as ``Fenced`` tells too, but has not claimed the pipeline's name since."""

    code = "DISPLACED"
    retriable = True


class ProgressConflict(TransactionError):
    """Spark's checkpoint and the committed progress disagree; going on could lose or repeat records."""

    code = "PROGRESS_CONFLICT"


class ProgressGone(TransactionError):
    """The committed progress is gone: it expired, or somebody deleted it. Nothing tells any more what is committed."""

    code = "PROGRESS_GONE"


class UnsafeSession(TransactionError):
    """The Spark session or query has a setting that would break the guarantee."""

    code = "UNSAFE_SESSION"


class AttemptsExhausted(TransactionError):
    """A batch failed too often. Under exactly_once every attempt was aborted: nothing of it is visible, nothing is lost."""

    code = "ATTEMPTS_EXHAUSTED"


class OutcomeUnknown(TransactionError):
    """A commit was sent and the coordinator did not answer in time. The next start finds out and finishes."""

    code = "OUTCOME_UNKNOWN"
    retriable = True


class OutcomeForgotten(OutcomeUnknown):
    """A writer's commit was sent and not answered, and the marker that would tell is gone: asking again does not help."""

    code = "OUTCOME_FORGOTTEN"
    retriable = False
    _is_final = True


class Draining(TransactionError):
    """The sink was asked to end after the running batch; this batch was not begun and comes again at the next start."""

    code = "DRAINING"


class QueryFailed(OnceflowError):
    """Spark ended the query for a reason that onceflow does not know; the cause is chained."""

    code = "QUERY_FAILED"


class WriterError(OnceflowError):
    """The writer is used in a way that it cannot serve, or cannot go on."""

    code = "WRITER"


class DeliveryFailed(WriterError):
    """Events were not acknowledged. ``fields["failures"]`` has all of them (``onceflow.writer.delivery.FailedDelivery``).

    Those that were refused come first, those that were only taken back because another one failed last.
    """

    code = "DELIVERY_FAILED"


class TransactionAborted(WriterError):
    """The transaction was aborted, nothing of it is visible: seek its consumer back, if it has one, run the block again."""

    code = "TRANSACTION_ABORTED"
    retriable = True


class WriterClosed(WriterError):
    """The writer was closed before."""

    code = "WRITER_CLOSED"
    _is_final = True


class StoreError(OnceflowError):
    """A deduplication store cannot go on."""

    code = "STORE"


class StoreFenced(StoreError):
    """Another reader took the partition. Nothing of the unit was committed; the other one handles its events."""

    code = "STORE_FENCED"


class StoreUnavailable(StoreError):
    """The store does not answer. Nothing of the unit was committed; its events come again."""

    code = "STORE_UNAVAILABLE"
    retriable = True


class StoreMismatch(StoreError):
    """The store was made by something else, or by another version of onceflow."""

    code = "STORE_MISMATCH"


class StoreLost(StoreError):
    """The group has committed offsets, but the store knows nothing of the events before them."""

    code = "STORE_LOST"


class EffectRefused(StoreError):
    """Redis refused commands of a handler. The unit's other commands were done, and its events count as handled."""

    code = "EFFECT_REFUSED"


class CommitUnknown(StoreError):
    """The store's commit was sent and not answered. The position in the store tells: the reader looks before it goes on."""

    code = "COMMIT_UNKNOWN"
    retriable = True


class OutboxError(OnceflowError):
    """An outbox cannot be relayed."""

    code = "OUTBOX"


class OutboxUnavailable(OutboxError):
    """The outbox's database does not answer. Nothing is lost: what is not yet in Kafka stands in the table."""

    code = "OUTBOX_UNAVAILABLE"
    retriable = True


class OutboxMismatch(OutboxError):
    """The table is no outbox, or it and the relay's position in Kafka do not belong together.

    Nothing was deleted; the newest batch may be in Kafka with its rows still in the table, and then the message says so.
    """

    code = "OUTBOX_MISMATCH"


class DemoError(OnceflowError):
    """The demo could not tell its story to the end; this says nothing about the guarantee."""

    code = "DEMO"


class HistoryInvalid(OnceflowError):
    """A recorded history is not what its format says. ``fields["mistakes"]`` lists all of them as text."""

    code = "HISTORY_INVALID"

    @classmethod
    def of(cls, where: str, mistakes: list[str]) -> HistoryInvalid:
        """One error that names every mistake found in ``where``."""
        lines = "".join(f"\n  - {mistake}" for mistake in mistakes)
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        action = "correct what records the history; docs/history-format.md describes the format"
        return cls(f"{len(mistakes)} {noun} in {where}:{lines}", action=action, mistakes=tuple(mistakes), where=where)


class FunctionInvalid(OnceflowError):
    """The function that the output of a history is held against is not there, fails, or gives something else than output."""

    code = "FUNCTION_INVALID"


class OracleFailed(OnceflowError):
    """What a run must have written could not be found out: the replay of its batches failed."""

    code = "ORACLE_FAILED"


class VerificationError(OnceflowError):
    """A verification could not be carried out: its world broke in a way that was not meant. Says nothing of the guarantee."""

    code = "VERIFICATION"


class PipelineStuck(VerificationError):
    """The pipeline that is verified commits no batch any more, though nothing is in its way. An anomaly, and no accident."""

    code = "STUCK"


class ReaderError(OnceflowError):
    """A reader cannot go on. What the store has committed stays so; everything else comes again."""

    code = "READER"


class HandlerFailed(ReaderError):
    """The handler failed too often for one event, and there are no dead letters to put it in."""

    code = "HANDLER_FAILED"


class EventUnreadable(ReaderError):
    """A record whose headers cannot be read, so that nobody knows which event it is, and no dead letters to put it in."""

    code = "EVENT_UNREADABLE"


class EventsGone(ReaderError):
    """The next event to be handled is no longer in its topic (deleted by retention, or the topic was made anew), or the topic
    cannot be read up to what the group has handled.
    """

    code = "EVENTS_GONE"


class ReaderReplaced(ReaderError):
    """Another reader with the same group instance id took over."""

    code = "READER_REPLACED"


class RestartsExhausted(OnceflowError):
    """Driver after driver was lost without a committed batch in between, or the one that was asked to end.

    Nothing is lost; the next start goes on.
    """

    code = "RESTARTS_EXHAUSTED"
