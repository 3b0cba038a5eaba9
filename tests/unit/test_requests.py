"""What is asked, what each answer becomes, and how often a question is put: against a scripted cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitResponse, OffsetFetchResponse
from kafka.protocol.producer import InitProducerIdRequest

from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    InputError,
    NotAuthorized,
    ProgressConflict,
    RequestFailed,
)
from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient, Topic
from onceflow.transaction import questions as asking
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import (
    Audited,
    Coordinated,
    Described,
    Ended,
    Event,
    Identity,
    Initialised,
    ProgressRead,
    Refused,
    Snapshot,
    SourcesRead,
    Stored,
    WriteFailed,
)
from onceflow.transaction.producing import error_of
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed, Questions
from onceflow.transaction.requests import Requests

OURS = Identity(7, 3)
NEXT = Identity(7, 4)
PROGRESS = Progress(2, "q", "me", ("d0", "d1"))
SOURCE = {("in", 1): 20, ("in", 0): 10, ("also", 0): 5}
V1, V2 = Questions("any", 1, 60_000), Questions("any", 2, 60_000)
ID = "onceflow-any"


def sent(request: Any) -> tuple[str, dict[str, Any], int, int]:
    return type(request).__name__, request.to_dict(), request._min_version, request._max_version


# --------------------------------------------------------------------------------------------------------- what is asked


def test_the_transaction_is_described() -> None:
    for settle in (True, False):
        question = V2.describe(settle=settle)
        assert question.kind == TRANSACTION
        assert question.request.to_dict() == {"transactional_ids": [ID]}


@pytest.mark.parametrize(("expected", "pid", "epoch"), [(None, -1, -1), (OURS, 7, 3)])
def test_an_identity_is_asked_for(expected: Identity | None, pid: int, epoch: int) -> None:
    question = V2.initialise(expected)
    fields = {"transactional_id": ID, "transaction_timeout_ms": 60_000, "producer_id": pid, "producer_epoch": epoch}
    unused = {"enable2_pc": False, "keep_prepared_txn": False}
    assert question.kind == TRANSACTION
    assert sent(question.request) == ("InitProducerIdRequest", fields | unused, 3, 5)


def test_an_idempotent_identity_is_asked_for_without_a_transaction() -> None:
    name, fields, least, most = sent(asking.idempotent_init())
    assert (name, least, most) == ("InitProducerIdRequest", 3, 5)
    assert (fields["transactional_id"], fields["transaction_timeout_ms"]) == (None, -1)
    assert (fields["producer_id"], fields["producer_epoch"]) == (-1, -1)


@pytest.mark.parametrize(
    ("questions", "least", "most", "commit"),
    [(V1, 0, 4, True), *((each, 5, 5, commit) for each in (V2, Questions("any", 3, 1)) for commit in (True, False))],
)
def test_the_end_is_asked_for_in_the_version_of_the_epoch(
    questions: Questions, least: int, most: int, commit: bool
) -> None:
    question = questions.end(OURS, commit=commit)
    fields = {"transactional_id": ID, "producer_id": 7, "producer_epoch": 3, "committed": commit}
    assert question.kind == TRANSACTION
    assert sent(question.request) == ("EndTxnRequest", fields, least, most)


def test_an_abort_of_version_1_raises_the_epoch() -> None:
    question = V1.end(OURS, commit=False)
    assert question.kind == TRANSACTION
    assert sent(question.request) == sent(V1.initialise(OURS).request)
    assert question.read(plain(0)) == Initialised(NEXT)
    assert question.read(plain(codes.CONCURRENT_TRANSACTIONS)) == Ended(None)


@pytest.mark.parametrize(
    ("questions", "version", "commit"), [(V1, (0, 4), True), (V2, (5, 5), True), (V2, (5, 5), False)]
)
def test_no_epoch_changes_the_version_of_the_end(questions: Questions, version: tuple[int, int], commit: bool) -> None:
    for epoch in (*range(64), 255, 256, 1023, 1024, 32765, 32766):
        _, fields, least, most = sent(questions.end(Identity(7, epoch), commit=commit).request)
        assert (least, most) == version, f"epoch {epoch}"
        assert (fields["producer_epoch"], fields["committed"]) == (epoch, commit)


@pytest.mark.parametrize("stable", [True, False])
def test_the_offsets_are_asked_for(stable: bool) -> None:
    record = [{"name": "onceflow-progress", "topic_id": None, "partition_indexes": [0]}]
    asked: list[tuple[asking.Question[Any], Any]] = [(V2.committed(stable=stable), None)]
    asked += [(V2.progress(stable=stable), record)]
    for question, topics in asked:
        name, fields, least, most = sent(question.request)
        assert question.kind == GROUP
        assert (name, least, most) == ("OffsetFetchRequest", 8, 9)
        assert fields["require_stable"] is stable
        assert fields["groups"] == [{"group_id": ID, "member_id": None, "member_epoch": -1, "topics": topics}]


def test_the_group_joins_the_transaction_first_in_version_1() -> None:
    first, _ = V1.store(OURS, PROGRESS, SOURCE)
    fields = {"transactional_id": ID, "producer_id": 7, "producer_epoch": 3, "group_id": ID}
    assert first.kind == TRANSACTION
    assert sent(first.request) == ("AddOffsetsToTxnRequest", fields, first.request._min_version, 3)


@pytest.mark.parametrize(("questions", "least", "most"), [(V1, 3, 4), (V2, 5, 5), (Questions("any", 3, 1), 5, 5)])
def test_progress_and_offsets_are_committed_together(questions: Questions, least: int, most: int) -> None:
    asked = questions.store(OURS, PROGRESS, SOURCE)
    assert len(asked) == (2 if questions.version == 1 else 1)
    name, fields, lowest, highest = sent(asked[-1].request)
    assert asked[-1].kind == GROUP
    assert (name, lowest, highest) == ("TxnOffsetCommitRequest", least, most)
    assert {key: value for key, value in fields.items() if key != "topics"} == {
        "transactional_id": ID,
        "group_id": ID,
        "producer_id": 7,
        "producer_epoch": 3,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
    }
    offset, metadata = PROGRESS.encode()
    assert fields["topics"] == [
        {"name": "onceflow-progress", "partitions": [entry(0, offset, metadata)]},
        {"name": "also", "partitions": [entry(0, 5, "d1")]},
        {"name": "in", "partitions": [entry(0, 10, "d1"), entry(1, 20, "d1")]},
    ]


@pytest.mark.parametrize(("questions", "version"), [(V1, (3, 4)), (V2, (5, 5))])
def test_a_claim_is_stored_without_source_offsets_and_in_the_same_version(
    questions: Questions, version: tuple[int, int]
) -> None:
    """On version 2 an older request would not add the group to the transaction: the claim would not be in it."""
    _, fields, *versions = sent(questions.store(OURS, Progress.empty("me"), {})[-1].request)
    assert tuple(versions) == version
    assert [topic["name"] for topic in fields["topics"]] == ["onceflow-progress"]


def entry(partition: int, offset: int, metadata: str = "") -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }


def test_offsets_are_committed_without_a_transaction() -> None:
    (question,) = V2.plain_offsets(SOURCE)
    name, fields, least, most = sent(question.request)
    assert question.kind == GROUP
    assert (name, least, most) == ("OffsetCommitRequest", 7, 8)
    assert (fields["group_id"], fields["generation_id_or_member_epoch"]) == (ID, -1)
    assert (fields["member_id"], fields["group_instance_id"]) == ("", None)
    assert offsets_of(question) == [("also", 0, 5, ""), ("in", 0, 10, ""), ("in", 1, 20, "")]
    assert {part["committed_leader_epoch"] for topic in fields["topics"] for part in topic["partitions"]} == {-1}


MANY = {("in", number): 10 * number for number in range(2 * asking.OFFSETS_AT_ONCE + 1)}


def offsets_of(question: asking.Question[Event]) -> list[tuple[str, int, int, str]]:
    fields = question.request.to_dict()
    return [
        (topic["name"], part["partition_index"], part["committed_offset"], part["committed_metadata"])
        for topic in fields["topics"]
        for part in topic["partitions"]
    ]


@pytest.mark.parametrize("questions", [V1, V2])
def test_more_offsets_than_fit_one_request_are_committed_by_several(questions: Questions) -> None:
    """A coordinator writes those of a request as one batch, of a size that is limited."""
    assert asking.OFFSETS_AT_ONCE == 500
    commits = questions.store(OURS, PROGRESS, MANY)[-3:]
    parts = [offsets_of(question) for question in commits]
    assert [len(part) for part in parts] == [500, 500, 2]
    record = (asking.ANCHOR_TOPIC, asking.ANCHOR_PARTITION, *PROGRESS.encode())
    assert list(chain(*parts)) == [record, *(("in", number, end, "d1") for (_, number), end in MANY.items())]
    assert {type(question.request).__name__ for question in commits} == {"TxnOffsetCommitRequest"}
    assert len(questions.store(OURS, PROGRESS, MANY)) == (4 if questions.version == 1 else 3)
    plain_parts = [offsets_of(question) for question in questions.plain_offsets(MANY)]
    assert [len(part) for part in plain_parts] == [500, 500, 1]
    assert len(questions.plain_offsets(MANY)) == 3
    assert list(chain(*plain_parts)) == [("in", number, end, "") for (_, number), end in MANY.items()]


def test_leaders_are_asked_for_their_partitions() -> None:
    assert asking.describe_producers({"a": {1}, "b": [0, 2]}).to_dict() == {
        "topics": [{"name": "a", "partition_indexes": [1]}, {"name": "b", "partition_indexes": [0, 2]}]
    }


# ------------------------------------------------------------------------------------------------- what answers become


def described(state: str, code: int = 0) -> Any:
    return SimpleNamespace(
        transaction_states=[SimpleNamespace(error_code=code, producer_id=7, producer_epoch=3, transaction_state=state)]
    )


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ("Empty", Coordinated.EMPTY),
        ("Ongoing", Coordinated.ONGOING),
        ("PrepareCommit", Coordinated.COMPLETING),
        ("PrepareAbort", Coordinated.COMPLETING),
        ("PrepareEpochFence", Coordinated.COMPLETING),
        ("CompleteCommit", Coordinated.COMMITTED),
        ("CompleteAbort", Coordinated.ABORTED),
        ("Dead", Coordinated.ABSENT),
    ],
)
def test_every_state_of_the_coordinator(shown: str, state: Coordinated) -> None:
    assert V2.describe(settle=False).read(described(shown)) == Described(Snapshot(state, OURS))
    if state is not Coordinated.COMPLETING:
        assert V2.describe(settle=True).read(described(shown)) == Described(Snapshot(state, OURS))
    else:
        with pytest.raises(Again, match="markers are not written yet") as again:
            V2.describe(settle=True).read(described(shown))
        assert not again.value.moved


@pytest.mark.parametrize("settle", [True, False])
def test_an_unknown_transactional_id_is_absent(settle: bool) -> None:
    unknown = described("", codes.TRANSACTIONAL_ID_NOT_FOUND)
    assert V2.describe(settle=settle).read(unknown) == Described(Snapshot(Coordinated.ABSENT, None))


def plain(code: int) -> Any:
    return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=4)


def listed(code: int) -> Any:
    """Several partitions, one of which has the code."""
    parts = [SimpleNamespace(partition_index=n, error_code=code if n == 1 else 0) for n in range(3)]
    return SimpleNamespace(topics=[SimpleNamespace(name="in", partitions=parts)])


def fetched(code: int = 0, group_code: int = 0, *entries: tuple[str, int, int, str | None]) -> Any:
    parts = [
        SimpleNamespace(
            name=name,
            partitions=[SimpleNamespace(partition_index=p, error_code=code, committed_offset=offset, metadata=note)],
        )
        for name, p, offset, note in entries or (("in", 0, 1, None),)
    ]
    return SimpleNamespace(groups=[SimpleNamespace(error_code=group_code, topics=parts)])


def held_in(code: int) -> Any:
    part = SimpleNamespace(partition_index=0, error_code=code, active_producers=[])
    return SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=[part])])


def read_held(answer: Any) -> Event:
    held: dict[tuple[str, int], int] = {}
    asking.read_held(answer, OURS, held)
    return Audited(held)


READERS: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "DescribeTransactions": (V2.describe(settle=True).read, lambda code: described("Empty", code)),
    "InitProducerId": (V2.initialise(OURS).read, plain),
    "InitProducerId that aborts": (V1.end(OURS, commit=False).read, plain),
    "OffsetFetch": (V2.progress().read, fetched),
    "OffsetFetch of the group": (V2.committed(stable=True).read, lambda code: fetched(0, code)),
    "AddOffsetsToTxn": (V1.store(OURS, PROGRESS, {})[0].read, plain),
    "TxnOffsetCommit": (V2.store(OURS, PROGRESS, {})[0].read, listed),
    "OffsetCommit": (V2.plain_offsets(SOURCE)[0].read, listed),
    "DescribeProducers": (read_held, held_in),
    "EndTxn of version 1": (V1.end(OURS, commit=True).read, plain),
    "EndTxn of version 2": (V2.end(OURS, commit=False).read, plain),
}
EVERY_CODE = range(-1, 140)
BUSY = {7, 13, 14, 19, 20, 51, 88}
MOVED = {3, 5, 6, 9, 15, 16, 56, 74, 75, 100}
REFUSED = {47, 48, 49, 59, 90}
ABORTABLE = {45, 120}
DENIED = {29, 30, 31, 53, 65}
UNWRITABLE = {10, 17, 18, 32, 43, 44, 76, 87}


def meaning(of: Callable[[Any], Any], answer: Any) -> str:
    try:
        event = of(answer)
    except Again as again:
        return "again, elsewhere" if again.moved else "again"
    except Exception as error:  # noqa: BLE001  which one is what is asked here
        return type(error).__name__
    if isinstance(event, WriteFailed):
        assert not event.terminal
        return "abort"
    return "refused" if isinstance(event, Refused) else "success"


def usual_meaning(code: int) -> str:
    groups = {"again": BUSY, "again, elsewhere": MOVED, "refused": REFUSED, "abort": ABORTABLE, "NotAuthorized": DENIED}
    found = [name for name, group in groups.items() if code in group]
    return "success" if code == 0 else found[0] if found else "RequestFailed"


def meaning_of_end(code: int) -> str:
    """Whatever says neither yes nor no is asked again: a commit may be durable."""
    if code == 0 or code in REFUSED | DENIED:
        return usual_meaning(code)
    return "again, elsewhere" if code in (15, 16) else "again"


EXCEPTIONS = {
    ("DescribeTransactions", 105): "success",
    ("InitProducerId", 50): "ConfigurationError",
    ("InitProducerId that aborts", 50): "ConfigurationError",
    ("InitProducerId that aborts", 51): "success",  # it has begun
    # No identity is named in the question, so none is refused.
    **{("DescribeProducers", code): "RequestFailed" for code in REFUSED | ABORTABLE},
}


@pytest.mark.parametrize("request_name", list(READERS))
def test_every_error_code_of_every_answer(request_name: str) -> None:
    read, answer = READERS[request_name]
    usual = meaning_of_end if request_name.startswith("EndTxn") or request_name.endswith("aborts") else usual_meaning
    for code in EVERY_CODE:
        wanted = EXCEPTIONS.get((request_name, code), usual(code))
        assert meaning(read, answer(code)) == wanted, f"{request_name} answered with {codes.name_of(code)}"


def test_every_error_code_of_a_produce_request() -> None:
    for code in EVERY_CODE:
        if code == 0 or code in BUSY | MOVED:
            continue
        kinds = [(REFUSED, IdentityRefused), (DENIED, NotAuthorized), (UNWRITABLE, InputError)]
        wanted = next((kind for group, kind in kinds if code in group), AttemptFailed)
        assert type(error_of(code, "produce to out-0", None)) is wanted, codes.name_of(code)
    assert codes.RETRIABLE == BUSY | MOVED
    assert frozenset({15, 16}) == codes.COORDINATOR_MOVED
    assert codes.OUT_OF_ORDER_SEQUENCE_NUMBER == 45


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        (29, "READ on the topic"),
        (30, "READ on the group"),
        (31, "IDEMPOTENT_WRITE on the cluster"),
        (53, "WRITE on the transactional id"),
        (65, "DESCRIBE on the delegation token"),
    ],
)
def test_a_denial_says_what_is_lacking(code: int, lacks: str) -> None:
    for name in ("InitProducerId", "TxnOffsetCommit", "DescribeProducers"):
        read, answer = READERS[name]
        with pytest.raises(NotAuthorized, match=lacks) as denied:
            read(answer(code))
        assert f"grant it {lacks}" in denied.value.action


@pytest.mark.parametrize(
    ("request_name", "words"),
    [
        ("DescribeTransactions", "onceflow-any: DescribeTransactions: "),
        ("InitProducerId", "onceflow-any: InitProducerId: "),
        ("AddOffsetsToTxn", "onceflow-any: AddOffsetsToTxn: "),
        ("TxnOffsetCommit", "onceflow-any: the offset of in-1: "),
        ("OffsetFetch", "onceflow-any: OffsetFetch of in-0: "),
        ("OffsetFetch of the group", "onceflow-any: OffsetFetch: "),
        ("EndTxn of version 2", "onceflow-any: EndTxn: "),
    ],
)
def test_a_refusal_says_what_was_refused(request_name: str, words: str) -> None:
    read, answer = READERS[request_name]
    assert read(answer(90)) == Refused(f"{words}{codes.name_of(90)}")
    if not request_name.startswith("EndTxn"):
        assert read(answer(120)) == WriteFailed(terminal=False, reason=f"{words}{codes.name_of(120)}")


def test_a_timeout_that_the_broker_does_not_allow_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"pipeline 'any'[\s\S]*60000 is above"):
        V2.initialise(None).read(plain(codes.INVALID_TRANSACTION_TIMEOUT))


def test_successes() -> None:
    assert V1.initialise(OURS).read(plain(0)) == Initialised(NEXT)
    assert V1.end(OURS, commit=True).read(plain(0)) == Ended(None)
    assert V2.end(OURS, commit=True).read(plain(0)) == Ended(NEXT)
    assert Questions("any", 3, 1).end(OURS, commit=True).read(plain(0)) == Ended(NEXT)
    assert V1.store(OURS, PROGRESS, {})[0].read(plain(0)) == Stored()
    assert V1.store(OURS, PROGRESS, {})[1].read(listed(0)) == Stored()


def test_what_is_committed() -> None:
    offset, metadata = PROGRESS.encode()
    everything = [
        (asking.ANCHOR_TOPIC, 0, offset, metadata),
        (asking.ANCHOR_TOPIC, 1, 9, ""),
        ("in", 0, 0, None),
        ("in", 1, -1, None),
        ("in", 2, 12, ""),
    ]
    answer = fetched(0, 0, *everything)
    assert V2.progress().read(answer) == ProgressRead(PROGRESS)
    plainly = {(asking.ANCHOR_TOPIC, 1): 9, ("in", 0): 0, ("in", 2): 12}
    assert V2.committed(stable=False).read(answer) == Committed(PROGRESS, plainly, plain=frozenset(plainly))
    noted = [everything[0], ("in", 0, 4, "d1"), ("in", 1, 5, "d0"), ("left", 0, 6, ""), ("old", 0, 7, None)]
    places = {("in", 0): 4, ("in", 1): 5, ("left", 0): 6, ("old", 0): 7}
    newest, plainly_too = frozenset({("in", 0)}), frozenset({("left", 0), ("old", 0)})
    notes = {("in", 0): "d1", ("in", 1): "d0"}
    assert V2.committed(stable=False).read(fetched(0, 0, *noted)) == Committed(
        PROGRESS, places, newest, plainly_too, notes
    )
    alone = {("in", 0): 0, ("in", 2): 12}
    assert V2.committed(stable=False).read(fetched(0, 0, *everything[2:])) == Committed(
        None, alone, plain=frozenset(alone)
    )
    without_progress = V2.committed(stable=False).read(fetched(0, 0, ("in", 0, 4, "d1")))
    assert without_progress == Committed(None, {("in", 0): 4}, notes={("in", 0): "d1"})
    assert V2.progress().read(fetched(0, 0, *everything[1:])) == ProgressRead(None)
    assert V2.progress().read(fetched(0, 0, (asking.ANCHOR_TOPIC, 0, -1, None))) == ProgressRead(None)


@pytest.mark.parametrize("metadata", ["{}", None])
def test_progress_that_cannot_be_read(metadata: str | None) -> None:
    with pytest.raises(ProgressConflict, match="group onceflow-any, topic onceflow-progress") as conflict:
        V2.progress().read(fetched(0, 0, (asking.ANCHOR_TOPIC, 0, 3, metadata)))
    assert "another name" in conflict.value.action
    assert "metadata ''" in str(conflict.value) or metadata


def test_what_a_leader_holds_of_an_identity() -> None:
    def producer(pid: int, epoch: int, last: int) -> Any:
        return SimpleNamespace(producer_id=pid, producer_epoch=epoch, last_sequence=last)

    def part(number: int, *producers: Any, code: int = 0) -> Any:
        return SimpleNamespace(partition_index=number, error_code=code, active_producers=producers)

    strangers = (producer(8, 3, 50), producer(7, 2, 60))
    parts = [
        part(0, *strangers, producer(7, 3, 41)),
        part(1, *strangers),
        part(2, producer(7, 3, -1)),
        part(3, producer(7, 3, 2**31 - 1)),
    ]
    held: dict[tuple[str, int], int] = {}
    asking.read_held(SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=parts)]), OURS, held)
    assert held == {("out", 0): 42, ("out", 1): 0, ("out", 2): 0, ("out", 3): 0}
    assert asking.SEQUENCE_SPACE == 2**31
    late = [part(4, producer(7, 3, 0)), part(5, code=6)]
    with pytest.raises(Again, match="6"):
        asking.read_held(SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=late)]), OURS, held)
    assert held["out", 4] == 1


# ----------------------------------------------------------------------------------------------------- how it is asked


class Script(KafkaClient):
    """A cluster that answers as the test says, and notes what it was asked. An exception among the answers is raised."""

    def __init__(self, *answers: Any) -> None:
        super().__init__({"bootstrap_servers": ["127.0.0.1:9"]}, patience_s=60)
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.forgotten: list[tuple[int, str]] = []
        self.refreshed: list[list[str]] = []
        self.leaders = {"a": {0: 1, 1: 2}, "b": {0: 1}}

    def ask_coordinator(self, kind: int, key: str, request: Any) -> Any:
        assert key == ID
        return self._next((kind, type(request).__name__))

    def ask(self, node_id: int | None, request: Any) -> Any:
        parts = None
        if not isinstance(request, InitProducerIdRequest):
            parts = {topic["name"]: topic["partition_indexes"] for topic in request.to_dict()["topics"]}
        return self._next((node_id, parts))

    def _next(self, asked: Any) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget_coordinator(self, kind: int, key: str) -> None:
        self.forgotten.append((kind, key))

    def topics(self, names: Any, *, refresh: bool = False, **_sure: float) -> dict[str, Topic]:
        if refresh:
            self.refreshed.append(sorted(names))
        return {name: Topic(name, self.leaders[name]) for name in names}


Scripted = Callable[..., tuple[Requests, Script]]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    opened: list[Script] = []

    def make(*answers: Any, version: int = 2) -> tuple[Requests, Script]:
        opened.append(Script(*answers))
        return Requests(opened[-1], "any", version, 60_000), opened[-1]

    yield make
    for client in opened:
        client.close()


def test_the_id_is_that_of_the_name(scripted: Scripted) -> None:
    assert scripted(plain(0))[0].id == ID


def test_each_method_asks_its_question(scripted: Scripted) -> None:
    requests, client = scripted(
        described("PrepareAbort"), described("Empty"), plain(0), plain(0), fetched(0, 0, ("in", 0, 4, "")), plain(0)
    )
    assert requests.describe(settle=False) == Described(Snapshot(Coordinated.COMPLETING, OURS))
    assert requests.describe(settle=True) == Described(Snapshot(Coordinated.EMPTY, OURS))
    assert requests.initialise(OURS) == Initialised(NEXT)
    assert requests.end(OURS, commit=True) == Ended(NEXT)
    assert requests.read_committed().offsets == {("in", 0): 4}
    client.answers = [fetched()]
    assert requests.read_progress() == ProgressRead(None)
    names = ["DescribeTransactions", "DescribeTransactions", "InitProducerId", "EndTxn", "OffsetFetch", "OffsetFetch"]
    assert [name for _, name in client.asked] == [f"{name}Request" for name in names]
    assert [kind for kind, _ in client.asked] == [TRANSACTION] * 4 + [GROUP] * 2


def test_the_fence_and_the_direction_are_passed_on(monkeypatch: pytest.MonkeyPatch, scripted: Scripted) -> None:
    requests, client = scripted(plain(0))
    seen: list[dict[str, Any]] = []

    def ask(kind: int, key: str, request: Any) -> Any:
        seen.append(request.to_dict())
        return plain(0)

    monkeypatch.setattr(client, "ask_coordinator", ask)
    requests.initialise(None)
    requests.initialise(OURS)
    requests.end(OURS, commit=True)
    requests.end(OURS, commit=False)
    assert [fields.get("producer_epoch") for fields in seen] == [-1, 3, 3, 3]
    assert seen[0]["transaction_timeout_ms"] == 60_000
    assert [fields.get("committed") for fields in seen[2:]] == [True, False]


def test_offsets_are_read_stable_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch, scripted: Scripted) -> None:
    requests, client = scripted(fetched())
    seen: list[bool] = []

    def ask(kind: int, key: str, request: Any) -> Any:
        seen.append(request.require_stable)
        return fetched()

    monkeypatch.setattr(client, "ask_coordinator", ask)
    requests.read_committed()
    requests.read_committed(stable=False)
    requests.read_progress()
    requests.read_sources()
    requests.read_claimed(None)
    assert seen == [True, False, True, True, True]


def test_the_output_ends_where_the_newest_batch_does() -> None:
    """Beside its offsets may stand those of topics that are read no more."""
    offsets = {("in", 0): 4, ("in", 1): 5, ("gone", 0): 6}
    newest = frozenset({("in", 0), ("in", 1)})
    assert Committed(PROGRESS, offsets, newest).ends == {("in", 0): 4, ("in", 1): 5}
    assert Committed(PROGRESS, offsets).ends == offsets, "an older onceflow has not said which they are"


def test_a_renewal_is_of_the_newest_batch_alone(scripted: Scripted) -> None:
    """Beside its offsets stand those of topics that are read no more."""
    record = (asking.ANCHOR_TOPIC, 0, *PROGRESS.encode())
    newest = [("in", number, 4 + number, "d1") for number in range(20)]
    requests, _ = scripted(fetched(0, 0, record, *reversed(newest), ("old", 0, 7, "d0")))
    kept = tuple((("in", number), 4 + number) for number in range(20))
    assert requests.read_sources() == SourcesRead(PROGRESS, kept)


def test_a_question_is_repeated_until_it_is_answered(scripted: Scripted) -> None:
    requests, client = scripted(plain(51), Again("the connection broke", moved=True), plain(14), plain(0))
    assert requests.initialise(None) == Initialised(NEXT)
    assert len(client.asked) == 4
    assert client.forgotten == []


RECORD = (asking.ANCHOR_TOPIC, 0, *PROGRESS.encode())
READ = ProgressRead(PROGRESS)
COMMIT, FETCH = (GROUP, "TxnOffsetCommitRequest"), (GROUP, "OffsetFetchRequest")


@pytest.mark.parametrize(("version", "joins"), [(1, [(TRANSACTION, "AddOffsetsToTxnRequest")]), (2, [])])
def test_what_was_read_is_compared_with_what_whoever_accepts_the_offsets_has(
    scripted: Scripted, version: int, joins: list[tuple[int, str]]
) -> None:
    joined = [plain(0)] * len(joins)
    requests, client = scripted(*joined, listed(0), fetched(0, 0, RECORD), version=version)
    assert requests.store(OURS, PROGRESS, {}, READ) == Stored()
    assert client.asked == [*joins, COMMIT, FETCH]
    requests, client = scripted(*joined, listed(0), fetched(0, 0, RECORD), version=version)
    assert requests.store(OURS, PROGRESS, {}, ProgressRead(None)) == READ, "what is committed instead"
    requests, client = scripted(*joined, listed(0), fetched(), version=version)
    assert requests.store(OURS, PROGRESS, {}, READ) == ProgressRead(None), "nothing is committed any more"
    requests, client = scripted(*joined, listed(0), version=version)
    assert requests.store(OURS, PROGRESS, {}) == Stored()
    assert client.asked == [*joins, COMMIT], "what was committed by ourselves is compared with nothing"


def test_it_is_compared_without_waiting_for_our_own_transaction(
    monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    requests, client = scripted()
    answers, stable = [listed(0), fetched(0, 0, RECORD)], []

    def ask(kind: int, key: str, request: Any) -> Any:
        stable.append(getattr(request, "require_stable", None))
        return answers.pop(0)

    monkeypatch.setattr(client, "ask_coordinator", ask)
    assert requests.store(OURS, PROGRESS, {}, READ) == Stored()
    assert stable == [None, False]


def test_who_moves_between_the_two_accepts_the_offsets_anew(scripted: Scripted) -> None:
    """Only who has just accepted them is known to coordinate."""
    requests, client = scripted(listed(0), fetched(0, 16), listed(0), fetched(0, 0, RECORD))
    assert requests.store(OURS, PROGRESS, {}, READ) == Stored()
    assert client.asked == [COMMIT, FETCH, COMMIT, FETCH]
    assert client.forgotten == [(GROUP, ID)]


def test_a_refusal_of_either_is_told(scripted: Scripted) -> None:
    requests, client = scripted(listed(47))
    assert isinstance(requests.store(OURS, PROGRESS, {}, READ), Refused)
    assert client.asked == [COMMIT]
    requests, client = scripted(listed(0), fetched(0, 47))
    assert isinstance(requests.store(OURS, PROGRESS, {}, READ), Refused)


def test_a_refusal_of_any_part_is_told(scripted: Scripted) -> None:
    requests, client = scripted(plain(47), version=1)
    assert isinstance(requests.store(OURS, PROGRESS, {}, READ), Refused)
    assert len(client.asked) == 1
    requests, client = scripted(plain(0), listed(47), version=1)
    assert isinstance(requests.store(OURS, PROGRESS, {}, READ), Refused)
    assert len(client.asked) == 2
    requests, client = scripted(listed(0), listed(90))
    assert isinstance(requests.store(OURS, PROGRESS, MANY), Refused)
    assert len(client.asked) == 2


ONCE = (asking.ANCHOR_TOPIC, 0, *PROGRESS.claimed_by("before").encode())


def test_what_is_committed_with_other_progress_than_was_claimed_is_asked_again_of_who_coordinates_now(
    scripted: Scripted,
) -> None:
    requests, client = scripted(fetched(0, 0, ONCE, ("in", 0, 2, "d0")), fetched(0, 0, RECORD, ("in", 0, 4, "d1")))
    assert requests.read_claimed(PROGRESS).offsets == {("in", 0): 4}
    assert client.asked == [FETCH] * 2
    assert client.forgotten == [(GROUP, ID)]


def test_who_coordinates_the_group_is_looked_up_again(scripted: Scripted) -> None:
    requests, client = scripted()
    requests.forget_group()
    assert (client.asked, client.forgotten) == ([], [(GROUP, ID)])


def test_where_nothing_else_is_told_it_is_said_who_told_it(scripted: Scripted) -> None:
    requests, client = scripted(fetched(0, 0, ONCE))
    client.patience_s = 0.0
    with pytest.raises(BrokerUnreachable, match="group onceflow-any: each answer tells of other progress") as told:
        requests.read_claimed(PROGRESS)
    assert "see that the brokers reach each other" in told.value.action
    requests, client = scripted(Again("gone"))
    client.patience_s = 0.0
    with pytest.raises(BrokerUnreachable, match=r"\] OffsetFetch: no usable answer in time, last: gone"):
        requests.read_claimed(PROGRESS)


def test_each_part_of_many_offsets_is_compared(scripted: Scripted) -> None:
    many = {("in", number): 1 for number in range(asking.OFFSETS_AT_ONCE)}
    requests, client = scripted(listed(0), fetched(0, 0, RECORD), listed(0), fetched())
    assert requests.store(OURS, PROGRESS, many, READ) == ProgressRead(None)
    assert client.asked == [COMMIT, FETCH] * 2


def test_a_coordinator_that_moved_is_looked_for_again(scripted: Scripted) -> None:
    requests, client = scripted(plain(16), plain(15), plain(0))
    assert requests.end(OURS, commit=True) == Ended(NEXT)
    assert client.forgotten == [(TRANSACTION, ID)] * 2
    requests, client = scripted(listed(16), listed(0))
    assert requests.store(OURS, PROGRESS, {}) == Stored()
    assert client.forgotten == [(GROUP, ID)]


def test_an_unanswered_commit_is_asked_for_again_under_its_own_identity_alone(
    monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    """Whoever is there by then may have fenced us: under its identity we would commit what it has half written."""
    requests, client = scripted(plain(0))
    client.patience_s = 0.0
    asked: list[tuple[str, int, int]] = []

    def ask(kind: int, key: str, request: Any) -> Any:
        fields = request.to_dict()
        asked.append((type(request).__name__, fields.get("producer_id", -1), fields.get("producer_epoch", -1)))
        if len(asked) == 1:
            raise Again("no answer")
        return plain(0) if asked[-1][0] == "EndTxnRequest" else by_another

    by_another = described("Ongoing")
    by_another.transaction_states[0].producer_epoch = OURS.epoch + 1
    monkeypatch.setattr(client, "ask_coordinator", ask)
    with pytest.raises(BrokerUnreachable, match="EndTxn"):
        requests.end(OURS, commit=True)
    assert asked == [("EndTxnRequest", OURS.producer_id, OURS.epoch)]

    asked.clear()
    client.patience_s = 60.0
    assert requests.end(OURS, commit=True) == Ended(NEXT)
    assert asked == [("EndTxnRequest", OURS.producer_id, OURS.epoch)] * 2


def test_the_wait_for_markers_is_bounded(scripted: Scripted) -> None:
    """A coordinator that cannot write its markers: a partition has no leader."""
    requests, client = scripted(described("PrepareCommit"))
    client.patience_s = 0.02
    with pytest.raises(BrokerUnreachable, match=r"DescribeTransactionsRequest: .* markers are not written yet"):
        requests.describe(settle=True)


def test_offsets_follow_once_the_group_has_joined(scripted: Scripted) -> None:
    requests, client = scripted(plain(0), listed(0), version=1)
    assert requests.store(OURS, PROGRESS, SOURCE) == Stored()
    assert client.asked == [(TRANSACTION, "AddOffsetsToTxnRequest"), (GROUP, "TxnOffsetCommitRequest")]
    for code, kind in ((90, Refused), (120, WriteFailed)):
        requests, client = scripted(plain(code), version=1)
        assert isinstance(requests.store(OURS, PROGRESS, SOURCE), kind)
        assert client.asked == [(TRANSACTION, "AddOffsetsToTxnRequest")]
    requests, client = scripted(plain(0), listed(47), version=1)
    assert isinstance(requests.store(OURS, PROGRESS, SOURCE), Refused)


def test_each_part_of_many_offsets_is_heard(scripted: Scripted) -> None:
    commits = [(GROUP, "TxnOffsetCommitRequest")]
    requests, client = scripted(listed(0))
    assert requests.store(OURS, PROGRESS, MANY) == Stored()
    assert client.asked == commits * 3
    requests, client = scripted(listed(0), listed(14), listed(90))
    assert isinstance(requests.store(OURS, PROGRESS, MANY), Refused)
    assert client.asked == commits * 3, "the second is asked again, and nothing after its refusal"
    requests, client = scripted(listed(0), listed(0), listed(22))
    with pytest.raises(RequestFailed, match="the offset of in-1"):
        requests.store(OURS, PROGRESS, MANY)


COUNTS = {("a", 0): 3, ("a", 1): 5, ("b", 0): 2}


def leader(*parts: tuple[str, int, int], code: int = 0) -> Any:
    """What a leader holds: topic, partition, last sequence."""
    topics = [
        SimpleNamespace(
            name=name,
            partitions=[
                SimpleNamespace(
                    partition_index=number,
                    error_code=code,
                    active_producers=[SimpleNamespace(producer_id=7, producer_epoch=3, last_sequence=last)],
                )
            ],
        )
        for name, number, last in parts
    ]
    return SimpleNamespace(topics=topics)


def test_each_leader_is_asked_once_for_all_its_partitions(scripted: Scripted) -> None:
    requests, client = scripted(leader(("a", 0, 2), ("b", 0, 1)), leader(("a", 1, 4)))
    assert requests.audit(OURS, COUNTS) == Audited(COUNTS)
    assert client.asked == [(1, {"a": [0], "b": [0]}), (2, {"a": [1]})]
    assert client.refreshed == []


def test_a_partition_that_is_gone_holds_nothing(scripted: Scripted) -> None:
    """Its topic was made anew with fewer, between the write and the audit."""
    requests, _ = scripted(leader(("a", 0, 2)), leader(("b", 0, 1)))
    assert requests.audit(OURS, {**COUNTS, ("a", 7): 4}) == Audited({("a", 0): 3, ("a", 7): 0, ("b", 0): 2})


def test_an_audit_goes_on_with_the_leaders_that_did_not_answer(scripted: Scripted) -> None:
    moved, busy = leader(("a", 1, 0), code=6), leader(("a", 1, 0), code=7)
    requests, client = scripted(leader(("a", 0, 2), ("b", 0, 1)), moved, busy, leader(("a", 1, 4)))
    assert requests.audit(OURS, COUNTS) == Audited(COUNTS)
    assert client.asked[1:] == [(2, {"a": [1]})] * 3
    assert client.refreshed == [["a", "b"]]


def test_an_idempotent_identity_is_asked_for_until_it_is_given(scripted: Scripted) -> None:
    requests, client = scripted(plain(14), plain(0))
    assert requests.idempotent_identity() == NEXT
    assert client.asked == [(None, None)] * 2
    requests, _ = scripted(plain(31))
    with pytest.raises(NotAuthorized, match="InitProducerId: the principal lacks IDEMPOTENT_WRITE"):
        requests.idempotent_identity()


def test_whoever_gives_up_says_what_was_not_answered(scripted: Scripted) -> None:
    requests, client = scripted(Again("gone"))
    client.patience_s = 0.0
    with pytest.raises(BrokerUnreachable, match=r"\] InitProducerId: no usable answer in time, last: gone"):
        requests.idempotent_identity()
    with pytest.raises(BrokerUnreachable, match=r"\] DescribeProducers: no usable answer"):
        requests.audit(OURS, COUNTS)


def test_a_leader_is_asked_for_its_partitions_in_order(scripted: Scripted) -> None:
    counts = {("a", number): 1 for number in range(12)}
    requests, client = scripted(Again("gone"))
    client.patience_s, client.leaders = 0.0, {"a": dict.fromkeys(range(12), 1)}
    with pytest.raises(BrokerUnreachable):
        requests.audit(OURS, counts)
    assert client.asked == [(1, {"a": list(range(12))})]


def test_plain_offsets(scripted: Scripted) -> None:
    requests, client = scripted(listed(0))
    requests.commit_offsets({})
    assert client.asked == []
    requests.commit_offsets(SOURCE)
    assert client.asked == [(GROUP, "OffsetCommitRequest")]
    requests, _ = scripted(listed(22))
    with pytest.raises(RequestFailed, match="the offset of in-1"):
        requests.commit_offsets(SOURCE)
    requests, client = scripted(listed(0), listed(0), listed(22))
    with pytest.raises(RequestFailed, match="the offset of in-1"):
        requests.commit_offsets(MANY)
    assert client.asked == [(GROUP, "OffsetCommitRequest")] * 3


def test_the_fields_that_are_read_are_those_that_kafka_names() -> None:
    """The scripted answers above have the fields of the real ones."""
    fetch = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics.OffsetFetchResponsePartitions
    real = fetch(partition_index=1, committed_offset=2, committed_leader_epoch=3, metadata="m", error_code=0)
    assert (real.partition_index, real.committed_offset, real.metadata, real.error_code) == (1, 2, "m", 0)
    commit = OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition
    assert commit(partition_index=1, error_code=2).error_code == 2
