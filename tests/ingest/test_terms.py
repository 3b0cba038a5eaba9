"""What a name stands for is noted with its first rows; another topic, format or delimiter under it is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.ingest.support import files

from onceflow.errors import ConfigurationError, InputError, OnceflowError, SourceChanged, TopicMissing
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.event_rows import event_rows, numbers_as_text
from onceflow.ingest.events import Committed, Event, Started
from onceflow.ingest.files import Format
from onceflow.ingest.runner import Ingest
from onceflow.ingest.source import Source, SourceBatch
from onceflow.ingest.tables import TableOptions, TableSource, connect
from onceflow.ingest.terms import FOUND, NOTE, Terms, is_begun, to_note, without_note
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory

    from onceflow.broker import EmbeddedBroker

TIMEOUT_S = 120.0
FILE, TABLE = {"file:///a.csv#1": "position"}, {"table:public.orders": "position"}


def terms_of(form: Format = Format.CSV, topic: str = "sales", **options: Any) -> Terms:
    return {**files("any", form, **options).terms, "topic": topic}


def noted(terms: Terms) -> dict[str, str]:
    """The positions after the first rows."""
    return {**FILE, **to_note("any", terms, {})}


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        (Format.JSONL, {}, "format: 'csv' until now, 'jsonl' is given"),
        (Format.PARQUET, {}, "format: 'csv' until now, 'parquet' is given"),
        (Format.CSV, {"delimiter": ";"}, "delimiter: ',' until now, ';' is given"),
        (Format.CSV, {"quoted": False}, "quoting: 'csv' until now, 'none' is given"),
        (Format.CSV, {"columns": ("a", "b")}, "header: 'the first record' until now, 'none, but --columns' is given"),
    ],
)
@pytest.mark.parametrize("from_now_on", [True, False])
def test_what_positions_count_in_never_changes(
    form: Format, options: dict[str, Any], said: str, *, from_now_on: bool
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_note("day", terms_of(form, **options), noted(terms_of()), from_now_on=from_now_on)
    assert said in caught.value.message
    assert "ingest 'day'" in caught.value.message
    assert "another name" in caught.value.action
    assert "--from-now-on" not in caught.value.action


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"topic": "sale"}, "topic: 'sales' until now, 'sale' is given"),
        ({"key": "id"}, {}, "key: 'id' until now, none is given"),
        ({}, {"key": "id"}, "key: none until now, 'id' is given"),
        ({"columns": ("a",)}, {"columns": ("a", "b")}, "columns: 'a' until now, 'a,b' is given"),
    ],
)
def test_what_no_position_counts_in_changes_if_that_is_meant(
    before: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    positions, terms = noted(terms_of(**before)), terms_of(**now)
    with pytest.raises(ConfigurationError) as caught:
        to_note("day", terms, positions)
    assert said in caught.value.message
    assert "--from-now-on" in caught.value.action
    moved = {**positions, **to_note("day", terms, positions, from_now_on=True)}
    assert to_note("day", terms, moved) == {}, "it is noted, and need not be said again"
    with pytest.raises(ConfigurationError):
        to_note("day", terms_of(**before), moved)


def test_all_that_changed_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_note("day", terms_of(topic="other", delimiter=";"), noted(terms_of()), from_now_on=True)
    assert len(caught.value.fields["mistakes"]) == 2


def test_what_harms_no_position_is_nothing_to_note() -> None:
    positions = noted(terms_of())
    assert to_note("day", terms_of(finished=True, accept_new=True, block_bytes=7), positions) == {}
    assert files("other-pattern").terms == files("any").terms


def test_positions_without_a_note_are_taken_over() -> None:
    assert to_note("day", terms_of(), FILE).keys() == {NOTE}
    assert without_note({**FILE, **to_note("day", terms_of(), FILE)}) == FILE


@pytest.mark.parametrize(("positions", "source"), [(FILE, "table"), (TABLE, "files")])
def test_positions_without_a_note_still_tell_files_from_tables(positions: dict[str, str], source: str) -> None:
    with pytest.raises(ConfigurationError, match="source: "):
        to_note("day", {"source": source, "topic": "sales", "key": None}, positions)


def test_a_term_that_an_earlier_version_did_not_know_is_not_compared() -> None:
    assert to_note("day", {**terms_of(), "new": "x"}, noted(terms_of())).keys() == {NOTE}


@pytest.mark.parametrize("from_now_on", [True, False])
def test_terms_of_a_later_version_are_refused_as_nobody_here_knows_what_they_mean(*, from_now_on: bool) -> None:
    with pytest.raises(ConfigurationError, match="by a later version") as caught:
        to_note("day", terms_of(), noted({**terms_of(), "new": "x", "other": None}), from_now_on=from_now_on)
    assert caught.value.fields["mistakes"] == ("new: 'x'",)


def test_an_option_of_a_later_version_that_was_not_given_stays_in_the_note() -> None:
    """So that the version before it can be started again."""
    later = noted({**terms_of(), "new": None})
    assert to_note("day", terms_of(), later) == {}
    moved = to_note("day", terms_of(topic="other"), later, from_now_on=True)
    assert json.loads(moved[NOTE]) == {**terms_of(topic="other"), "new": None}


# -------------------------------------------------------------------------------------------------------- on a real broker


class Runs:
    """Starts of one name, whose source is a file that grows."""

    def __init__(self, broker: EmbeddedBroker, path: Path) -> None:
        self.settings = ClusterSettings.of(broker.bootstrap_servers)
        self.path = path
        self.name = f"terms-{path.parent.name}"

    def add(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def run(self, topic: str, form: Format = Format.JSONL, *, from_now_on: bool = False, **options: Any) -> int:
        source = files(self.path, form, **options)
        with SourceCommitter(self.name, self.settings) as committer:
            return Ingest(self.name, topic, source, from_now_on=from_now_on).run(committer)

    @contextmanager
    def following(self, topic: str, make: Callable[[], Source] | None = None) -> Iterator[Callable[[], None]]:
        """An ingest that goes on meanwhile; what it gives waits until it has committed rows once more."""
        events: SimpleQueue[Event | None] = SimpleQueue()
        with SourceCommitter(self.name, self.settings) as committer, ThreadPoolExecutor(1) as background:
            # A connection to SQLite is used where it was made.
            source = background.submit(make or (lambda: files(self.path, Format.JSONL))).result()
            ingest = Ingest(self.name, topic, source, events.put)
            running = background.submit(ingest.run, committer, follow=True)
            running.add_done_callback(lambda _: events.put(None))

            def committed() -> None:
                while not isinstance(event := events.get(timeout=TIMEOUT_S), Committed):
                    assert event is not None, running.exception()

            try:
                yield committed
            finally:
                ingest.stop()
                background.submit(source.close)
            running.result()

    def positions(self) -> dict[str, str]:
        with SourceCommitter(self.name, self.settings) as committer:
            return committer.start()

    def forget_note(self) -> None:
        """As a version left it that noted nothing."""
        with SourceCommitter(self.name, self.settings) as committer:
            assert NOTE in committer.start()
            committer.commit([], {NOTE: None})


@pytest.fixture
def runs(broker: EmbeddedBroker, tmp_path: Path) -> Runs:
    return Runs(broker, tmp_path / "a.jsonl")


def test_rows_do_not_go_on_in_another_topic_unless_that_is_meant(runs: Runs, topic: TopicFactory, read: Reader) -> None:
    first, second = topic(), topic()
    runs.add("1", "2")
    assert runs.run(first) == 2
    runs.add("3")
    with pytest.raises(ConfigurationError, match=f"topic: '{first}' until now"):
        runs.run(second)
    assert runs.run(first) == 1, "a start that was refused changes nothing"
    runs.add("4")
    assert runs.run(second, from_now_on=True) == 1
    runs.add("5")
    with pytest.raises(ConfigurationError, match=f"topic: '{second}' until now"):
        runs.run(first)
    assert runs.run(second) == 1
    assert [m.value() for m in read(first)] == [b"1", b"2", b"3"]
    assert [m.value() for m in read(second)] == [b"4", b"5"]


def test_a_start_that_sent_nothing_binds_nobody(runs: Runs, topic: TopicFactory) -> None:
    runs.add("1")
    with pytest.raises(TopicMissing):
        runs.run("misspelt")
    assert runs.run(topic()) == 1


def test_a_start_that_is_refused_leaves_the_ingest_that_runs_alone(
    runs: Runs, topic: TopicFactory, read: Reader
) -> None:
    first, second = topic(), topic()
    runs.add("1")
    with runs.following(first) as committed:
        committed()
        with pytest.raises(ConfigurationError, match=f"topic: '{first}' until now"):
            runs.run(second)
        with pytest.raises(ConfigurationError, match="format: 'jsonl' until now"):
            runs.run(first, Format.PARQUET)
        runs.add("2")
        committed()
    assert [m.value() for m in read(first)] == [b"1", b"2"]


def test_so_does_one_that_names_another_table(runs: Runs, topic: TopicFactory, read: Reader, tmp_path: Path) -> None:
    """Refused for the positions, and not for the note."""
    target, database = topic(), tmp_path / "shop.db"

    def table(name: str) -> Source:
        options = TableOptions(name, "id")
        return TableSource(connect(f"sqlite:///{database}", options), options)

    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for name in ("orders", "customers"):
            connection.execute(f"create table {name} (id integer primary key autoincrement)")
            connection.execute(f"insert into {name} default values")
        with runs.following(target, lambda: table("orders")) as committed:
            committed()
            with (
                closing(table("customers")) as other,
                SourceCommitter(runs.name, runs.settings) as committer,
                pytest.raises(SourceChanged, match="customers was never read under this name"),
            ):
                Ingest(runs.name, target, other).run(committer)
            connection.execute("insert into orders default values")
            committed()
    assert [m.value() for m in read(target)] == [b'{"id":1}', b'{"id":2}']


@pytest.mark.parametrize("lines", [("",), ("", "  ")])
def test_what_holds_no_row_binds_nobody(runs: Runs, topic: TopicFactory, read: Reader, lines: tuple[str, ...]) -> None:
    """Neither the topic nor how records end, in which the position behind the blank lines would count."""
    runs.add(*lines)
    assert runs.run("misspelt") == 0
    positions = runs.positions()
    assert len(positions) == 1, "that the file is there"
    assert not is_begun(positions)
    target = topic()
    runs.add("1")
    assert runs.run(target, Format.CSV, columns=("a",)) == len(lines) + 1
    assert [json.loads(m.value() or b"") for m in read(target)] == [{"a": line} for line in (*lines, "1")]


def test_which_files_are_there_is_committed_before_the_first_row_and_binds_nobody(
    runs: Runs, topic: TopicFactory, read: Reader
) -> None:
    """The file is renamed before the next run, and the plain path finds another one."""
    told, target = list[Event](), topic()
    runs.path.touch()
    with SourceCommitter(runs.name, runs.settings) as committer:
        assert Ingest(runs.name, "misspelt", files(runs.path, Format.JSONL), told.append).run(committer) == 0
    runs.add("1")
    runs.path.rename(f"{runs.path}.1")
    runs.add("2")
    with SourceCommitter(runs.name, runs.settings) as committer:
        source = files(runs.path, Format.CSV, columns=("a",))
        assert Ingest(runs.name, target, source, told.append).run(committer) == 2
    assert [event.resumed for event in told if isinstance(event, Started)] == [False, False], (
        "nothing was sent by the first"
    )
    assert sorted(json.loads(m.value() or b"")["a"] for m in read(target)) == ["1", "2"]
    assert is_begun(runs.positions())
    assert not any(key.startswith(FOUND) for key in runs.positions())


def test_a_file_that_is_refused_stays_noted_and_begins_nothing(runs: Runs) -> None:
    """Renamed by a rotation and corrected, no pattern may find it."""
    runs.path.touch()
    runs.run("misspelt")
    assert len(runs.positions()) == 1
    runs.path.write_text("a,b\n1\n")
    with pytest.raises(InputError):
        runs.run("misspelt", Format.CSV)
    [noted] = runs.positions()
    assert noted.startswith(FOUND)
    assert not is_begun(runs.positions())


def test_where_rows_are_to_go_from_now_on_is_bound_by_a_row_as_well(
    runs: Runs, topic: TopicFactory, read: Reader
) -> None:
    first, second = topic(), topic()
    runs.add("1")
    assert runs.run(first) == 1
    runs.add("")
    assert runs.run(second, from_now_on=True) == 0
    runs.add("2")
    assert runs.run(first) == 1, "nothing has gone the other way"
    assert [m.value() for m in read(first)] == [b"1", b"2"]
    assert read(second) == []


class Looks:
    """A source with other batches at each look, which has the ingest end behind the last one."""

    terms: Terms = {"source": "files", "key": None}  # noqa: RUF012

    def __init__(self, *looks: list[SourceBatch]) -> None:
        self._looks = iter(looks)
        self.end: Callable[[], None] = lambda: None

    def restore(self, positions: Mapping[str, str]) -> None:
        self.restored = dict(positions)

    def size_bytes(self) -> None:
        return None

    def rows_to_come(self) -> None:
        return None

    def batches(self) -> Iterator[SourceBatch]:
        look = next(self._looks, None)
        if look is None:
            self.end()
        yield from look or []

    def check_end(self) -> None:
        raise AssertionError("it was ended")

    def stop(self) -> None:
        """A look waits for nothing."""

    def close(self) -> None:
        """Nothing is open."""


def test_positions_before_the_first_row_are_committed_with_it(runs: Runs, topic: TopicFactory) -> None:
    target, told = topic(), list[Event]()
    rows = event_rows(pa.array(["x"]), None, "any", numbers_as_text(1, 1), rising=True)
    source = Looks([SourceBatch(None, {"file:a": "1"}, 5)], [SourceBatch(rows, {"file:b": "2"}, 7)])
    ingest = Ingest(runs.name, target, source, told.append)
    source.end = ingest.stop
    with SourceCommitter(runs.name, runs.settings) as committer:
        assert ingest.run(committer, follow=True) == 1
    assert [event for event in told if isinstance(event, Committed)] == [Committed(1, 12)]
    assert without_note(runs.positions()) == {"file:a": "1", "file:b": "2"}


def test_positions_of_a_version_that_noted_nothing_get_the_note_with_the_next_rows(
    runs: Runs, topic: TopicFactory, read: Reader
) -> None:
    target, other = topic(), topic()
    runs.add("1")
    runs.run(target)
    runs.forget_note()
    assert runs.run(target) == 0
    runs.add("2")
    assert runs.run(target) == 1
    runs.add("3")
    with pytest.raises(ConfigurationError):
        runs.run(other)
    assert [m.value() for m in read(target)] == [b"1", b"2"]


def test_a_table_under_the_name_of_files_is_refused(runs: Runs, topic: TopicFactory, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("create table orders (id integer primary key autoincrement)")
    connection.close()
    target, options = topic(), TableOptions("orders", "id")
    runs.add("1")
    runs.run(target)
    source = TableSource(connect(f"sqlite:///{tmp_path}/shop.db", options), options)
    with SourceCommitter(runs.name, runs.settings) as committer, pytest.raises(OnceflowError) as caught:
        Ingest(runs.name, target, source).run(committer)
    source.close()
    assert "source: 'files' until now, 'table' is given" in caught.value.message
