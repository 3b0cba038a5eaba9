"""Every event is named by its caller or by its position, never by chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import EventRefused
from onceflow.events import EventIdentity, identity_of
from onceflow.writer.identity import checked, id_of, identify, plain

positions = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4)


def test_an_id_is_made_of_the_position() -> None:
    assert id_of(("orders", 3, 1042)) == "orders:3:1042"


@given(positions, positions)
def test_different_positions_give_different_ids_and_the_same_the_same(one: list[str], other: list[str]) -> None:
    assert (id_of(one) == id_of(other)) == (one == other)


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_short_way_writes_the_same_headers(source: str, event_id: str) -> None:
    short = {name: value.encode() if isinstance(value, str) else value for name, value in plain(source, event_id)}
    assert short == dict(EventIdentity(source, event_id).headers())
    assert identity_of(plain(source, event_id)) == EventIdentity(source, event_id)


@pytest.mark.parametrize(
    ("source", "event_id", "position", "sequence", "count"),
    [
        ("s", None, None, None, 1),
        ("s", "1", ("t", 1), None, 1),
        ("s", "", None, None, 1),
        ("s", None, (), None, 1),
        ("s", None, ("",), None, 1),  # would go out without an id, and be another event when it is sent again
        ("s", "1", None, 1 << 63, 1),
        ("", "1", None, None, 1),
        ("", None, None, -1, 3),
    ],
)
def test_an_event_without_one_clear_name_is_refused_with_every_mistake(
    source: str, event_id: str | None, position: tuple[str | int, ...] | None, sequence: int | None, count: int
) -> None:
    with pytest.raises(EventRefused) as caught:
        identify(source, event_id, position, "", sequence, is_placed=True)
    assert len(caught.value.fields["mistakes"]) == count


def test_a_sequence_needs_a_place() -> None:
    """Else an event that is sent again comes to another partition, behind a higher number, and counts as handled."""
    with pytest.raises(EventRefused, match="a key or a partition"):
        identify("s", "1", None, "", 7, is_placed=False)
    assert identify("s", "1", None, "", 7, is_placed=True).sequence == 7


def test_headers_that_the_writer_sets_are_refused() -> None:
    with pytest.raises(EventRefused, match="ce_id, ce_source"):
        checked([("trace", b"1"), ("ce_source", b"x"), ("ce_id", b"y")])
    for name in ("ce_id\0x", "\0", "trace\0"):  # on the wire the first would be a second ce_id
        with pytest.raises(EventRefused, match="must have no NUL") as cut:
            checked([("trace", b"1"), (name, b"fake")])
        assert repr(name) in str(cut.value)
    for strange in (5, b"trace", None):
        with pytest.raises(EventRefused, match="pairs of a name and a value"):
            checked([(strange, b"1")])  # type: ignore[list-item]
    assert checked([("trace", b"1"), ("trace", None)]) == [("trace", b"1"), ("trace", None)]


def test_a_text_as_a_position_is_refused_and_not_taken_apart_letter_by_letter() -> None:
    for text in ("orders:3", b"orders:3"):
        with pytest.raises(EventRefused, match="a position is a sequence of parts"):
            identify("s", None, text, "", None, is_placed=True)


def test_two_names_and_no_name_are_two_mistakes() -> None:
    with pytest.raises(EventRefused, match="give either id or position"):
        identify("s", None, None, "", None, is_placed=True)
    with pytest.raises(EventRefused, match="both given"):
        identify("s", "1", ("t", 1), "", None, is_placed=True)
