"""The documented rights are enough for each part, and each of them is needed: without it, it is named.

What a page's table lists is what is granted, so a row that is missing there, or one too many, is a test that fails.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.permissions.parts import (
    ALWAYS,
    KEPT,
    MANY,
    NARROW,
    NARROW_BYTES,
    PARTS,
    REFUSED,
    Part,
    fill_outbox,
    outbox_of,
    relay,
)
from tests.permissions.places import Place, Right, documented

from onceflow.broker.settings import DEFAULTS as BROKER_DEFAULTS
from onceflow.config import load
from onceflow.errors import InputError, NotAuthorized, RecordTooLarge
from onceflow.kafka.admin import ClusterAdmin
from onceflow.outbox.topics import Topics
from onceflow.pipeline.preflight import check_cluster
from onceflow.transaction.coordinator import RETENTION
from onceflow.transaction.renewing import LONGEST_RETENTION_S, retention_s

LACKS = [(part, right) for part in PARTS for right in part.to_take_away]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_documented_rights_are_enough(make_place: Callable[[], Place], part: Part) -> None:
    place = make_place()
    part.prepare(place)
    place.grant(part.rights)
    assert list(part.run(place)) == list(part.gives)


@pytest.mark.parametrize(("part", "lacking"), LACKS, ids=[f"{part.name}: {right}" for part, right in LACKS])
def test_each_of_them_is_needed_and_named_where_it_is_missing(
    make_place: Callable[[], Place], part: Part, lacking: Right
) -> None:
    place = make_place()
    part.prepare(place)
    rest = [right for right in part.rights if right != lacking]
    place.grant(rest)
    sees_it = any((right.kind, right.resource) == (lacking.kind, lacking.resource) for right in rest)
    check_refused(place, part, lacking, may_describe=sees_it)
    if not sees_it and lacking.operation != "DESCRIBE":
        place.grant([Right("DESCRIBE", lacking.kind, lacking.resource)])
        check_refused(place, part, lacking, may_describe=True)


def check_refused(place: Place, part: Part, lacking: Right, *, may_describe: bool) -> None:
    """The error says which right is missing, and on what; of a resource that is hidden the right may be the one to see it."""
    kind = part.other.get(lacking.resource, NotAuthorized) if may_describe else NotAuthorized
    with pytest.raises(kind) as caught:
        part.run(place)
    said = f"{caught.value.message} {caught.value.action}"
    assert lacking.resource in part.unnamed or place.named(lacking.resource) in said, said
    wanted = r"\bCREATE\b|\bcreated?\b" if lacking.operation == "CREATE" else rf"\b{lacking.operation}\b"
    assert re.search(wanted if may_describe else rf"{wanted}|\bDESCRIBE\b", said), said


@pytest.mark.parametrize("partitions", [None, 1], ids=["to be found", "to be made"])
def test_an_outbox_topic_that_is_hidden_is_not_told_as_missing(
    make_place: Callable[[], Place], partitions: int | None
) -> None:
    """Kafka lists no topic to whom it has no right, and says only to whom asks by name that it is refused."""
    place = make_place()
    hidden = place.named("<topic>")
    place.make_topics([hidden])
    with pytest.raises(NotAuthorized, match=hidden) as caught:
        Topics(place.settings, partitions).ensure([hidden])
    assert f"grant WRITE on the topic {hidden}" in caught.value.action


def test_a_pipelines_topic_that_is_hidden_is_not_told_as_missing(
    make_place: Callable[[], Place], tmp_path: Path
) -> None:
    """It was "create it", and it existed already."""
    place = make_place()
    source, hidden = place.named("<source>"), place.named("<topic>")
    place.make_topics([source, hidden])
    place.grant([Right("READ", "topic", "<source>")])
    (tmp_path / "pipeline.toml").write_text(
        f'name = "p"\n[kafka]\nbootstrap_servers = "{place.login}"\n[[source]]\nname = "s"\ntopics = ["{source}"]\n'
        f'format = "raw"\n[[sink]]\nfrom = "s"\ntopic = "{hidden}"\nvalue = "value"\n'
    )
    found = check_cluster(load(tmp_path / "pipeline.toml", {}), place.settings, ClusterAdmin(place.settings))
    assert isinstance(found.error, NotAuthorized)
    assert f"on the topic {hidden}, or it is hidden" in found.error.action
    assert "lacks DESCRIBE_CONFIGS on the cluster" in " ".join(found.notes)


@pytest.mark.parametrize("page", ["errors.md", "ingest.md", "outbox.md"])
def test_how_long_progress_is_kept_is_told_to_whom_may_see_it(make_place: Callable[[], Place], page: str) -> None:
    """To all others it is a day: where brokers keep it for less, they would forget the progress of what rests."""
    place = make_place()
    assert retention_s(place.settings) == LONGEST_RETENTION_S
    [right] = documented(page, KEPT)
    place.grant([Right("DESCRIBE", right.kind, right.resource)])
    assert retention_s(place.settings) == LONGEST_RETENTION_S
    place.grant([right])
    assert retention_s(place.settings) == int(BROKER_DEFAULTS[RETENTION]) * 60.0


# ---------------------------------------------------------------------------- a topic's limit that nobody tells the relay


LARGE = random.Random(1).randbytes(2 << 20)
"""More than Kafka's default of max.message.bytes, however it is compressed."""


@pytest.fixture
def untold(make_place: Callable[[], Place]) -> Place:
    """A place for an outbox whose topics' settings the relay may not see."""
    place = make_place()
    place.grant(documented("outbox.md", ALWAYS, REFUSED))
    place.make_topics(map(place.named, ["onceflow-positions-outbox-<name>", "outbox.dead-letter.<name>"]))
    return place


def fill(place: Place, *payloads: str | bytes, limit_bytes: int | None = None) -> None:
    """The events 0, 1, ..., whose topic takes ``limit_bytes``."""
    place.make_topics([place.named("outbox.event.<aggregatetype>")], limit_bytes)
    fill_outbox(place, [(str(number), place.named("<aggregatetype>"), each) for number, each in enumerate(payloads)])


def rows_of(place: Place, table: str) -> list[str]:
    with closing(sqlite3.connect(outbox_of(place))) as connection:
        return [event_id for (event_id,) in connection.execute(f"select id from {table} order by position")]


def sent(place: Place) -> list[bytes]:
    return [message.value() for message in place.cluster.messages(place.named("outbox.event.<aggregatetype>"))]


def test_a_row_larger_than_usual_is_sent_to_a_topic_that_takes_it(untold: Place) -> None:
    """It was taken for too large, by Kafka's default, and set aside."""
    fill(untold, "a", LARGE, "b", limit_bytes=4 << 20)
    relay(untold, refused=True)
    assert sent(untold) == [b"a", LARGE, b"b"]
    assert rows_of(untold, "outbox_refused") == []


def test_one_that_its_topic_does_not_take_is_named_or_set_aside(untold: Place) -> None:
    """The broker says that the batch is too large, and the row is alone in it."""
    fill(untold, "a", LARGE, "b")
    with pytest.raises(
        RecordTooLarge, match=r"event 1 \(type Paid\) .*: it takes 2,\d+,\d+ bytes as a batch of its own"
    ) as caught:
        relay(untold)
    assert caught.value.fields["position"] == 2
    assert rows_of(untold, "outbox") == ["0", "1", "2"]
    relay(untold, refused=True)
    assert (sent(untold), rows_of(untold, "outbox_refused")) == ([b"a", b"b"], ["1"])


def test_none_is_set_aside_for_a_batch_that_is_too_large(untold: Place) -> None:
    """Each of them fits. Once the relay is told what the topic takes, it makes batches that it takes."""
    fill(untold, *MANY, limit_bytes=NARROW_BYTES)
    with pytest.raises(InputError, match="TooLarge") as caught:
        relay(untold, refused=True)
    assert not isinstance(caught.value, RecordTooLarge)
    assert "grant it DESCRIBE_CONFIGS on the topic" in caught.value.action
    assert (sent(untold), rows_of(untold, "outbox_refused")) == ([], [])
    untold.grant(documented("outbox.md", NARROW))
    relay(untold, refused=True)
    assert sent(untold) == [each.encode() for each in MANY]
    assert rows_of(untold, "outbox_refused") == []
