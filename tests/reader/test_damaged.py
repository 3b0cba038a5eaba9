"""Records that are damaged, or cannot be read: the reader ends there, and handles nothing that was never written."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import KafkaError
from tests.reader.support import Place
from tests.reader.test_positions import lose_the_store

from onceflow.errors import OnceflowError, RequestFailed
from onceflow.reader import trouble
from onceflow.reader.settings import ReaderSettings

BEFORE = ["amount 100", "amount 200"]


def flip_a_bit(place: Place, text: str) -> None:
    """Of a value as it stands on the broker's disk, which the broker sends as it is: ``amount 300`` becomes ``amount 301``."""
    (log,) = (place.broker.directory / "data" / f"{place.topic}-0").glob("*.log")
    _, value, *_ = re.finditer(text.encode(), log.read_bytes())  # the key has it too
    at = value.end() - 1
    with log.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damaged(place: Place) -> None:
    """Three batches of records, of which the one in the middle is damaged."""
    for texts in (BEFORE, ["amount 300"], ["amount 400"]):
        place.send(texts)
    flip_a_bit(place, "amount 300")


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "control"])
def test_a_bit_that_flipped_on_the_disk_ends_the_reader_before_it_is_handled(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    options = ReaderSettings.base_options
    if not is_checked:
        monkeypatch.setattr(ReaderSettings, "base_options", lambda self: {**options(self), "check.crcs": False})
    damaged(place)
    error: OnceflowError | None = None
    try:
        place.book_all(batch_size=1)
    except RequestFailed as raised:
        error = raised
    if not is_checked:
        assert (error, place.effects()[2:]) == (None, ["amount 301", "amount 400"])
        return
    assert error is not None
    assert error.message.startswith(f"{place.topic}-0: the records from offset 2 on cannot be read")
    assert error.fields["offset"] == 2
    assert place.effects() == BEFORE[: len(place.effects())]


def test_damaged_records_are_not_passed_over_when_ids_are_read_again(place: Place) -> None:
    """Their ids would be missing in the store, and what their source sends again be handled again."""
    place.send(["amount 300"])  # alone, for several events may be several batches
    place.send(BEFORE)
    place.book_all()
    lose_the_store(place)
    flip_a_bit(place, "amount 300")
    with pytest.raises(RequestFailed, match=f"{place.topic}-0: the records from offset 0 on cannot be read"):
        place.book_all(lost_store="rebuild")


@pytest.mark.parametrize("name", ["_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED", "MSG_SIZE_TOO_LARGE"])
def test_what_librdkafka_passes_over_or_asks_for_without_end_is_raised(name: str) -> None:
    with pytest.raises(RequestFailed, match="t-0: the records from offset 7 on") as raised:
        trouble.check(KafkaError(getattr(KafkaError, name)), "t-0", 5, 7)
    assert raised.value.fields == {"error": name, "offset": 7}
