"""Plans that run: real broker, real Spark, records read back by another client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.command_line import await_markers

from onceflow.broker import EmbeddedBroker
from onceflow.cli.records import read_committed
from onceflow.config import load
from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    InputError,
    ProgressConflict,
    QueryFailed,
    RecordTooLarge,
    TopicMissing,
    UnsafeSession,
)
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import Control, Event, Finished, Mode, preflight, run
from onceflow.pipeline.checkpoint import REHEARSALS, Checkpoint
from onceflow.pipeline.control import ClockSetBack
from onceflow.pipeline.events import BatchCommitted, Note, Started, Stopping, TopicsCreated
from onceflow.transaction.committed import read_committed as read_committed_progress
from onceflow.transaction.sink import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Reader, TopicFactory

pytestmark = pytest.mark.usefixtures("spark")


class Lab:
    """A plan's directory, its topics and what it tells."""

    def __init__(self, directory: Path, broker: EmbeddedBroker, make_topic: TopicFactory) -> None:
        self.path = directory / "pipeline.toml"
        self.settings = ClusterSettings.of(broker.bootstrap_servers)
        self.lines = make_topic(2)
        self.sales = make_topic(2)
        self.revenue = make_topic(1)
        self.name = f"p-{self.lines}"
        self.events: list[Event] = []
        self.write_plan()

    def write_plan(self, extra: str = "", **changes: str) -> None:
        """A plan with a stateless and a stateful branch, and the changes made to its text."""
        text = f"""
name = "{self.name}"
checkpoint = "state"

[trigger]
available_now = true

[kafka]
bootstrap_servers = "{self.settings.bootstrap_servers}"

[[source]]
name = "lines"
topics = ["{self.lines}"]
schema = "id INT, country STRING, amount INT"

[[transform]]
name = "paid"
sql = "SELECT * FROM lines WHERE amount > 0"

[[transform]]
name = "by_country"
sql = '''
SELECT country, sum(amount) AS total
FROM paid GROUP BY country
'''

[[sink]]
from = "paid"
topic = "{self.sales}"
key = "country"
value = "cast(id AS string)"
headers = {{origin = "concat(_partition, '-', _offset)"}}

[[sink]]
from = "by_country"
topic = "{self.revenue}"
key = "country"
value = "cast(total AS string)"

[output]
mode = "update"
{extra}
"""
        for old, new in changes.items():
            assert CHANGES[old] in text
            text = text.replace(CHANGES[old], new)
        self.path.write_text(text)

    def send(
        self, rows: Iterable[dict[str, object] | str | None], topic: str | None = None, *, over: int | None = None
    ) -> None:
        """``over`` so many partitions, evenly; without it librdkafka spreads them as its batches come."""
        in_order = {"max.in.flight.requests.per.connection": 1}
        producer = Producer({**self.settings.for_librdkafka(), **in_order})
        for number, row in enumerate(rows):
            value = json.dumps(row) if isinstance(row, dict) else row
            producer.produce(topic or self.lines, value, partition=-1 if over is None else number % over)
        assert producer.flush(30) == 0

    def run(
        self,
        mode: Mode = Mode.REFUSE,
        control: Control | None = None,
        on_step: Callable[[str, int], None] | None = None,
        sink: Callable[..., KafkaSink] = KafkaSink,
        begun: str = "",
        when_started: Callable[[], None] = lambda: None,
    ) -> Finished:
        self.events.clear()

        def tell(event: Event) -> None:
            self.events.append(event)
            if isinstance(event, Started):
                when_started()

        return run(
            load(self.path, {}),
            tell=tell,
            control=control or Control(),
            mode=mode,
            begun=begun,
            make_sink=partial(sink, on_step=on_step),
        )

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def batches(self) -> list[BatchCommitted]:
        return [event for event in self.events if isinstance(event, BatchCommitted)]

    def read(self, topic: str) -> list[tuple[str | None, str | None]]:
        await_markers(self.settings, topic)
        return [(record.key, record.value) for record in read_committed(self.settings, topic)]

    def ids(self) -> list[int]:
        return sorted(int(value or -1) for _, value in self.read(self.sales))

    def checkpoint(self, part: str = "") -> Path:
        return self.path.parent / "state" / part


CHANGES = {
    "amount_filter": "WHERE amount > 0",
    "sales_value": 'value = "cast(id AS string)"',
    "schema": 'schema = "id INT, country STRING, amount INT"',
    "available_now": "available_now = true",
    "grouped": "FROM paid GROUP BY country",
}


@pytest.fixture
def lab(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Lab:
    return Lab(tmp_path, broker, topic)


def rows(*ids: int, country: str = "France", amount: int = 10) -> list[dict[str, object]]:
    return [{"id": i, "country": country, "amount": amount} for i in ids]


# -------------------------------------------------------------------------------------------------------------- the run


def test_a_stateless_and_a_stateful_branch_are_written_together(lab: Lab) -> None:
    lab.send(rows(1, 2) + rows(3, country="Spain") + rows(4, amount=-1))
    finished = lab.run()
    assert (finished.batches, finished.records) == (1, 5)
    assert lab.ids() == [1, 2, 3]
    assert sorted(lab.read(lab.revenue)) == [("France", "20"), ("Spain", "10")]


def test_rows_are_counted_once_however_many_branches_read_them(lab: Lab) -> None:
    lab.send(rows(1, 2, 3))
    lab.run()
    (batch,) = lab.batches()
    assert (batch.rows_in, batch.records, batch.written) == (3, 4, True)


def test_the_source_is_one_stream_with_one_end_although_two_branches_read_it(lab: Lab) -> None:
    lab.send(rows(*range(50)))
    lab.run()
    *_, first, second = lab.checkpoint("offsets/0").read_text().splitlines()
    assert json.loads(first) == json.loads(second)
    committed = read_committed_progress(lab.name, lab.settings).offsets
    assert committed == {(lab.lines, int(p)): end for p, end in json.loads(first)[lab.lines].items()}


def test_a_second_run_goes_on_where_the_first_ended(lab: Lab) -> None:
    lab.send(rows(1))
    lab.run()
    assert lab.run().batches == 0
    lab.send(rows(2))
    lab.run()
    assert lab.ids() == [1, 2]
    assert lab.read(lab.revenue) == [("France", "10"), ("France", "20")]


def test_headers_keys_timestamps_partitions_and_tombstones_arrive(lab: Lab, topic: TopicFactory) -> None:
    copies = topic(3)
    extra = f"""
[[sink]]
from = "lines"
topic_expr = "'{copies}'"
partition = "2"
timestamp = "timestamp_millis(1000)"
value = "cast(null AS string)"
key = "_value"
"""
    lab.write_plan(extra)
    lab.send(rows(1))
    lab.run()
    await_markers(lab.settings, copies)
    (record,) = read_committed(lab.settings, copies)
    assert (record.partition, record.value, json.loads(record.key or "")["id"]) == (2, None, 1)
    assert lab.ids() == [1]


def test_sinks_over_one_view_read_it_once(lab: Lab, topic: TopicFactory) -> None:
    copies = topic(1)
    lab.write_plan(f'[[sink]]\nfrom = "paid"\ntopic = "{copies}"\nvalue = "concat(\'copy \', id)"')
    lab.send(rows(1, 2))
    lab.run()
    assert lab.ids() == [1, 2]
    assert sorted(lab.read(copies)) == [(None, "copy 1"), (None, "copy 2")]
    assert len(lab.checkpoint("offsets/0").read_text().splitlines()) == 2 + 2, "one line for each of the two views"


def test_raw_values_and_a_pattern_of_topics(lab: Lab, topic: TopicFactory) -> None:
    copies = topic(1)
    lab.path.write_text(
        f"""
name = "{lab.name}"
[trigger]
available_now = true
[kafka]
bootstrap_servers = "{lab.settings.bootstrap_servers}"
[[source]]
name = "raw"
pattern = "{lab.lines[:-1]}[{lab.lines[-1]}]"
format = "raw"
[[sink]]
from = "raw"
topic = "{copies}"
value = "value"
headers = {{source = "_topic"}}
"""
    )
    lab.send(["not json", "\u00fc"])
    lab.run()
    assert sorted(value or "" for _, value in lab.read(copies)) == ["not json", "\u00fc"]


# -------------------------------------------------------------------------------------------------------- malformed rows

MALFORMED = [
    "junk",
    '{"id": 7} junk',
    '{"id": 7}{"id": 8}',
    '{"id": "seven"}',
    "",
    "null",
    "[1]",
    '{"id": 7',
    '{"id": 7}}',
    '{"id": 7},"x":8',
    '{"id": 7},{"id": 8}',
    '{"id": 7},{"_onceflow_end":true}',
    '{"id": 7}],"rows":[{"id": 8}',
    '{"id": 7},{"_onceflow_end":true}],"x":[{}',
    '{"id": 7}],"x":[8',
    '{"id": 7}]',
    "{},",
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_value_that_does_not_parse_ends_the_pipeline_with_its_place(lab: Lab, value: str) -> None:
    lab.send(rows(1))
    lab.run()
    lab.send([value])
    with pytest.raises(InputError, match=rf"topic {lab.lines}, partition \d, offset \d") as caught:
        lab.run()
    assert caught.value.fields["topic"] == lab.lines
    assert lab.ids() == [1], "nothing of the batch is visible"


def test_a_filter_of_the_users_does_not_hide_a_malformed_value(lab: Lab) -> None:
    """Wherever the optimizer puts the filter."""
    lab.write_plan(amount_filter="WHERE amount > 0 AND _topic = 'another'")
    lab.send(["junk"])
    with pytest.raises(InputError, match=lab.lines):
        lab.run()


def test_a_null_value_is_a_tombstone_and_not_malformed(lab: Lab) -> None:
    lab.send([None])
    assert lab.run().records == 0


def test_malformed_values_are_dropped_and_counted_on_request(lab: Lab) -> None:
    lab.write_plan(schema=CHANGES["schema"] + '\non_malformed = "drop"', amount_filter="")
    lab.send([*rows(1), *MALFORMED, None])
    lab.run()
    (batch,) = lab.batches()
    assert (batch.malformed, batch.rows_in) == (len(MALFORMED), len(MALFORMED) + 2)
    assert len(lab.read(lab.sales)) == 2, "the good row and the tombstone"


def test_malformed_values_are_kept_as_null_on_request(lab: Lab) -> None:
    value = "value = \"coalesce(cast(id AS string), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=CHANGES["schema"] + '\non_malformed = "null"', amount_filter="", sales_value=value)
    lab.send([*rows(1), *MALFORMED])
    lab.run()
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(["1", *(f"bad {text}" for text in MALFORMED)])


EXACT = ["12.5", "12.50", "-0.01", "9999999999.99", '"12.34"', "1e2", "null", "0.10000"]
ROUNDED = ["12.505", "0.004999", "9999999999.995", '"12.345"', "1e-3", "99999999999", '"12,50"', '"1,234.50"']


@pytest.mark.parametrize("kind", ["{}", "ARRAY<{}>", "STRUCT<a: {}>", "STRUCT<a: ARRAY<STRUCT<b: {}>>>"])
def test_a_decimal_is_exact_or_malformed(lab: Lab, kind: str) -> None:
    """Spark makes 12.51 of 12.505 and 1250.00 of "12,50"; who moves money wants to know of it. Wherever in a row it stands."""
    schema = (
        f'schema = "id INT, country STRING, amount INT, price {kind.format("DECIMAL(12, 2)")}"\non_malformed = "null"'
    )
    value = "value = \"coalesce(cast(id AS string), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=schema, amount_filter="", sales_value=value)
    around = {"{}": "{}", "ARRAY<{}>": "[{}]", "STRUCT<a: {}>": '{{"a":{}}}'}.get(kind, '{{"a":[{{"b":{}}}]}}')
    good = [f'{{"id":{n},"price":{around.format(text)}}}' for n, text in enumerate(EXACT)]
    bad = [f'{{"id":{n},"price":{around.format(text)}}}' for n, text in enumerate(ROUNDED)]
    lab.send([*good, *bad])
    lab.run()
    expected = [*(str(n) for n in range(len(EXACT))), *(f"bad {text}" for text in bad)]
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(expected)


def test_exact_decimals_arrive_as_the_schema_has_them(lab: Lab) -> None:
    schema = 'schema = "id INT, country STRING, amount INT, price DECIMAL(12, 2)"'
    lab.write_plan(schema=schema, amount_filter="", sales_value='value = "cast(price AS string)"')
    lab.send(['{"id":1,"price":12.5}', '{"id":2,"price":9999999999.99}', '{"id":3,"price":"0.10"}'])
    lab.run()
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == ["0.10", "12.50", "9999999999.99"]


@pytest.mark.parametrize(
    ("kind", "around"),
    [("TINYINT", "{}"), ("MAP<STRING, TINYINT>", '{{"a":1,"b":{}}}'), ("ARRAY<MAP<STRING, TINYINT>>", '[null,{{"a":{}}}]'),
     ("STRUCT<a: MAP<STRING, ARRAY<TINYINT>>>", '{{"a":{{"b":[{}]}}}}')],
)  # fmt: skip
def test_a_tinyint_is_the_number_that_is_written_or_malformed(lab: Lab, kind: str, around: str) -> None:
    """Spark makes -56 of 200, and -1 of 255. Wherever in a row it stands, in a map too."""
    schema = f'schema = "id INT, country STRING, amount INT, level {kind}"\non_malformed = "null"'
    value = "value = \"coalesce(concat(id, ' ', to_json(struct(level))), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=schema, amount_filter="", sales_value=value)
    good = [f'{{"level":{around.format(number)}}}' for number in (127, -128)]
    bad = [f'{{"level":{around.format(number)}}}' for number in (128, 200, 255, -129)]
    lab.send([f'{{"id":7,{text[1:]}' for text in [*good, *bad]])
    lab.run()
    expected = [*(f"7 {text}" for text in good), *(f'bad {{"id":7,{text[1:]}' for text in bad)]
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(expected)


def test_decimals_in_a_map_are_exact_or_malformed(lab: Lab) -> None:
    schema = 'schema = "id INT, country STRING, amount INT, price MAP<STRING, DECIMAL(12, 2)>"'
    lab.write_plan(schema=schema, amount_filter="", sales_value="value = \"cast(price['a'] AS string)\"")
    lab.send(['{"id":1,"price":{"a":12.5,"b":null}}', '{"id":2}'])
    lab.run()
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == ["", "12.50"]
    lab.send(['{"id":3,"price":{"a":1,"b":12.505}}'])
    with pytest.raises(InputError, match="does not fit its type"):
        lab.run()


@pytest.mark.parametrize("kind", ["TIMESTAMP", "ARRAY<TIMESTAMP>", "MAP<STRING, STRUCT<b: TIMESTAMP>>"])
def test_a_time_in_milliseconds_is_malformed(lab: Lab, kind: str) -> None:
    """Spark counts seconds: 1700000000000 is a time in the year 55840, 1807783200000000 has wrapped around to one in 2042."""
    schema = f'schema = "id INT, country STRING, amount INT, at {kind}"\non_malformed = "null"'
    value = "value = \"coalesce(cast(id AS string), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=schema, amount_filter="", sales_value=value)
    around = {"TIMESTAMP": "{}", "ARRAY<TIMESTAMP>": "[null,{}]"}.get(kind, '{{"a":null,"c":{{"b":{}}}}}')
    good = ["1700000000", "null", '"0001-01-01"', '"9999-12-31T23:59:59-12:00"', '"2024-02-29T12:00:00.123456Z"', "-1"]
    bad = ["1700000000000", "1700000000000000", "-1700000000000", '"10000-01-03"', '"2024-02-30"']
    bad += ["1807783200000000", "9223372036854775807", '"12:30:00"', '"202401"']
    lab.send([f'{{"id":{n},"at":{around.format(text)}}}' for n, text in enumerate(good)])
    values = [f'{{"id":7,"at":{around.format(text)}}}' for text in bad]
    lab.send(values)
    lab.run()
    expected = [*(str(n) for n in range(len(good))), *(f"bad {text}" for text in values)]
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(expected)


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP_NTZ", "MAP<STRING, ARRAY<DATE>>"])
def test_a_day_is_of_the_year_that_is_written_or_malformed(lab: Lab, kind: str) -> None:
    """Spark takes "20240101" for so many days since 1970, and "202401" for a year."""
    schema = f'schema = "id INT, country STRING, amount INT, at {kind}"\non_malformed = "null"'
    value = "value = \"coalesce(cast(id AS string), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=schema, amount_filter="", sales_value=value)
    around = '{{"a":[null,{}]}}' if kind.startswith("MAP") else "{}"
    good = ['"2024-02-29"', '"0001-01-01"', '"9999-12-31"', "null"]
    bad = ['"20240101"', '"202401"', '"19723"', '"-5"', '"0000-01-01"', '"10000-01-01"', "19723"]
    lab.send([f'{{"id":{n},"at":{around.format(text)}}}' for n, text in enumerate(good)])
    values = [f'{{"id":7,"at":{around.format(text)}}}' for text in bad]
    lab.send(values)
    lab.run()
    expected = [*(str(n) for n in range(len(good))), *(f"bad {text}" for text in values)]
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(expected)


@pytest.mark.parametrize(("kind", "around"), [("DOUBLE", "{}"), ("MAP<STRING, FLOAT>", '{{"a":null,"b":{}}}')])
def test_a_number_beyond_all_others_is_malformed_and_not_infinite(lab: Lab, kind: str, around: str) -> None:
    schema = f'schema = "id INT, country STRING, amount INT, rate {kind}"\non_malformed = "null"'
    value = "value = \"coalesce(cast(id AS string), concat('bad ', cast(_value AS string)))\""
    lab.write_plan(schema=schema, amount_filter="", sales_value=value)
    good = ["1e30", "Infinity", '"-Infinity"', "NaN", "null"]
    lab.send([f'{{"id":{n},"rate":{around.format(text)}}}' for n, text in enumerate(good)])
    values = [f'{{"id":7,"country":"INFORMATION","rate":{around.format(text)}}}' for text in ("1e400", "-1e400")]
    lab.send(values)
    lab.run()
    expected = [*(str(n) for n in range(len(good))), *(f"bad {text}" for text in values)]
    assert sorted(v or "" for _, v in lab.read(lab.sales)) == sorted(expected)


def test_a_decimal_without_room_for_more_digits_is_told_at_the_start(lab: Lab) -> None:
    lab.write_plan(schema='schema = "id INT, country STRING, amount DECIMAL(38, 18)"')
    lab.run()
    (note,) = [event.text for event in lab.events if isinstance(event, Note)]
    assert "source[0].schema: DECIMAL(38, 18) leaves no room" in note


# ------------------------------------------------------------------------------------------------- times and partitions


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_a_timestamp_without_a_time_zone_is_one_of_the_sessions(
    lab: Lab, spark: SparkSession, read: Reader, kind: str
) -> None:
    """It was taken for UTC. Midsummer in Berlin: 12:00 is 10:00 UTC."""
    extra = f"""
[[sink]]
from = "lines"
topic = "{lab.revenue}"
timestamp = "timestamp'2024-06-01 12:00:00'"
value = "'timed'"

[spark]
"sql.session.timeZone" = "Europe/Berlin"
"sql.timestampType" = "{kind}"
"""
    lab.write_plan(extra)
    lab.send(rows(1))
    try:
        lab.run()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.timestampType")
    (timed,) = [message for message in read(lab.revenue) if message.value() == b"timed"]
    assert timed.timestamp()[1] == 1_717_236_000_000


def test_a_partition_that_is_none_is_refused_without_ansi_mode_too(lab: Lab, spark: SparkSession) -> None:
    """As an INT it would be partition 1."""
    extra = f"""
[[sink]]
from = "lines"
topic = "{lab.revenue}"
partition = "4294967297"
value = "'astray'"

[spark]
"sql.ansi.enabled" = false
"""
    lab.write_plan(extra)
    lab.send(rows(1))
    try:
        with pytest.raises(InputError, match="partition holds 4294967297"):
            lab.run()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_a_spark_setting_in_another_case_has_no_effect_and_is_told(lab: Lab) -> None:
    lab.write_plan('[spark]\n"spark.sql.session.timezone" = "CET"\nexecutor.memoryoverhead = "1g"\n"mine.own" = 1')
    with pytest.raises(ConfigurationError) as caught:
        lab.run()
    timezone, memory = caught.value.fields["mistakes"]
    assert "spark.spark.sql.session.timezone: has no effect: Spark spells it spark.sql.session.timeZone" in timezone
    assert "spark.executor.memoryoverhead: has no effect: Spark spells it spark.executor.memoryOverhead" in memory


def test_speculation_is_refused_as_pyspark_writes_it(lab: Lab, spark: SparkSession) -> None:
    """``True`` is ``"True"`` for it, which Spark takes for true."""
    lab.send(rows(1))
    settings = spark.sparkContext._conf
    settings.set("spark.speculation", True)  # type: ignore[arg-type]
    try:
        with pytest.raises(UnsafeSession, match=r"set spark\.speculation to false"):
            lab.run()
    finally:
        settings.set("spark.speculation", "false")


def test_a_status_store_that_forgets_too_soon_is_refused(lab: Lab, spark: SparkSession) -> None:
    lab.send(rows(1))
    settings = spark.sparkContext._conf
    settings.set("spark.ui.retainedJobs", "1")
    try:
        with pytest.raises(UnsafeSession, match=r"spark\.ui\.retainedJobs = 1 lets Spark forget"):
            lab.run()
    finally:
        settings.set("spark.ui.retainedJobs", "1000")


# ----------------------------------------------------------------------------------------------------------------- loops


def test_a_topic_that_is_read_is_not_written_by_an_expression(lab: Lab) -> None:
    """Each record would come back as input, without end."""
    loop = f"""
[[sink]]
from = "lines"
topic_expr = "if(id = 2, '{lab.lines}', '{lab.revenue}')"
value = '{{value}}'
"""
    back = "to_json(struct(9 AS id, country, amount))"
    lab.write_plan(loop.format(value=back))
    lab.send(rows(1))
    lab.run()
    lab.send(rows(2))
    with pytest.raises(InputError, match=f"a topic_expr gives {lab.lines}, which a source of the plan reads"):
        lab.run()
    assert lab.ids() == [1]
    lab.write_plan(f"{loop.format(value=back)}feeds_back = true\n")
    lab.run()
    lab.run()
    assert lab.ids() == [1, 2, 9], "on purpose, and it ends with id 9"


# -------------------------------------------------------------------------------------------------------------- stopping


@pytest.fixture
def hourly(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Its query has a batch when it starts, and would have the next one in 2052: Spark counts intervals from 1970."""
    lab.write_plan(available_now='processing_time = "10000 days"', amount_filter="")
    monkeypatch.setattr("onceflow.config.rules._trigger", lambda _: [])
    return lab


def test_a_stop_in_the_middle_of_a_batch_ends_after_it(hourly: Lab) -> None:
    control = Control()

    def stop(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("WRITE", 0):
            control.stop("test")

    hourly.send(rows(1, 2, 3))
    finished = hourly.run(control=control, on_step=stop)
    assert (finished.reason, finished.batches) == ("test", 1)
    assert hourly.ids() == [1, 2, 3]
    assert hourly.checkpoint("commits/0").exists(), "Spark knows of the batch too, so nothing is replayed"


def test_a_stop_before_any_data_ends_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write_plan(available_now='processing_time = "1 second"')
    control = Control()
    control.stop("early")
    assert lab.run(control=control).reason == "early"


@pytest.mark.parametrize(
    ("mode", "guarantee", "driver_bytes", "repeated"),
    [
        (Mode.REFUSE, "exactly_once", None, []),
        (Mode.RESTART, "exactly_once", None, [0]),
        (Mode.REFUSE, "exactly_once", 0, []),
        (Mode.REFUSE, "at_least_once", None, []),
        (Mode.REFUSE, "at_most_once", None, []),
    ],
    ids=["driver", "driver, restart", "executors", "at_least_once", "at_most_once"],
)
def test_a_query_begins_again_when_the_clock_is_set_back_that_it_waits_by(
    hourly: Lab, mode: Mode, guarantee: str, driver_bytes: int | None, repeated: list[int]
) -> None:
    control, first = Control(), 0 if mode is Mode.RESTART else 1
    hourly.path.write_text(f'guarantee = "{guarantee}"\n{hourly.path.read_text()}')

    class Sink(KafkaSink):
        def __call__(self, batch: DataFrame, batch_id: int) -> None:
            super().__call__(batch, batch_id)
            if batch_id == first:
                hourly.send(rows(3))
                control.inbox.put(ClockSetBack(3600.0))
            if batch_id == first + 1:
                control.stop("test")

    run_of_one_batch(hourly)
    hourly.send(rows(1, 2))
    finished = hourly.run(mode, control, sink=partial(Sink, driver_bytes=driver_bytes))
    assert (finished.reason, finished.batches, len(hourly.batches())) == ("test", 2, 2)
    assert hourly.ids() == sorted([*range(4), *repeated])
    assert len(hourly.told(Started)) == 2
    assert any("set back by 3600 s" in note.text for note in hourly.events if isinstance(note, Note))


def run_of_one_batch(lab: Lab) -> None:
    control = Control()

    class Sink(KafkaSink):
        def __call__(self, batch: DataFrame, batch_id: int) -> None:
            super().__call__(batch, batch_id)
            control.stop("one batch")

    lab.send(rows(0))
    lab.run(control=control, sink=Sink)


def test_a_query_that_begins_again_does_not_fence_a_newer_driver(hourly: Lab) -> None:
    """Its clock is set back, perhaps, because it went on from a copy of its machine, and the newer one has the work by now."""
    control = Control()

    class Overtaken(KafkaSink):
        def go_on(self) -> None:
            newer.open(planned=True)
            super().go_on()

    def set_back_then_stop(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("WRITE", 0):
            hourly.send(rows(1))
            control.inbox.put(ClockSetBack(3600.0))
        if (step, batch_id) == ("WRITE", 1):
            control.stop("not fenced")

    hourly.send(rows(0))
    newer = KafkaSink(name=hourly.name, bootstrap_servers=hourly.settings.bootstrap_servers)
    with closing(newer), pytest.raises(Fenced):
        hourly.run(control=control, on_step=set_back_then_stop, sink=Overtaken)
    assert hourly.ids() == [0]


def test_a_stop_while_the_query_ends_to_begin_again_is_heard(hourly: Lab) -> None:
    """In the middle of a batch, for whose end the run waits, and at rest."""
    control = Control()

    def set_back_and_stop(step: str, _: int) -> None:
        if step == "WRITE":
            control.inbox.put(ClockSetBack(3600.0))
            control.stop("test")

    hourly.send(rows(1, 2))
    assert hourly.run(control=control, on_step=set_back_and_stop).reason == "test"
    control.inbox.put(ClockSetBack(3600.0))
    control.stop("at rest")
    assert hourly.run(control=control).reason == "at rest"
    assert hourly.ids() == [1, 2]
    assert [len(hourly.told(kind)) for kind in (Started, Stopping)] == [1, 1]


# ----------------------------------------------------------------------------------------------------- resume and restart


def test_a_deleted_checkpoint_is_refused_then_resumed_without_loss_or_repetition(lab: Lab) -> None:
    lab.send(rows(*range(10)))
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(rows(*range(10, 15)))
    with pytest.raises(ProgressConflict) as caught:
        lab.run()
    assert "--resume" in caught.value.action
    assert lab.ids() == list(range(10))
    lab.run(Mode.RESUME)
    assert lab.ids() == list(range(15))
    lab.send(rows(15))
    lab.run()
    assert lab.ids() == list(range(16)), "the resumed checkpoint is an ordinary one"


def test_a_batch_that_spark_has_planned_again_is_refused_then_resumed_where_state_depends_on_the_time(lab: Lab) -> None:
    """By its offsets the checkpoint fits, so that a resume would find nothing to resume."""
    lab.write_plan(grouped="FROM paid GROUP BY country, current_date()")
    for number in (1, 2):
        lab.send(rows(number))
        lab.run()
    for entry in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc"):
        lab.checkpoint(entry).unlink()
    for _ in range(2):
        with pytest.raises(ProgressConflict, match="of the same records at another time") as caught:
            lab.run()
    assert "--resume" in caught.value.action
    lab.send(rows(3))
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2, 3]
    assert [total for _, total in lab.read(lab.revenue)] == ["10", "20", "10"], "the state begins anew"


def test_resume_with_a_checkpoint_that_fits_changes_nothing(lab: Lab) -> None:
    lab.send(rows(1))
    lab.run()
    lab.send(rows(2))
    lab.run(Mode.RESUME)
    assert lab.read(lab.revenue)[-1] == ("France", "20"), "the state is still there"
    assert any("nothing to resume" in note.text for note in lab.events if isinstance(note, Note))


def test_resume_does_not_wait_for_the_transaction_of_a_dead_driver(lab: Lab) -> None:
    """Its offsets are in an open transaction, which makes the committed ones unstable until the broker aborts it."""
    lab.write_plan('transaction_timeout = "10 minutes"')
    lab.send(rows(1))
    lab.run()

    def die(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("COMMIT", 1):
            raise RuntimeError("died here")

    lab.send(rows(2))
    with pytest.raises(Exception, match="died here"):
        lab.run(on_step=die)
    shutil.rmtree(lab.checkpoint())
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2]


def test_resume_with_nothing_committed_says_so(lab: Lab) -> None:
    with pytest.raises(ProgressConflict, match="nothing to resume"):
        lab.run(Mode.RESUME)


def test_restart_writes_everything_again_and_keeps_the_old_checkpoint(lab: Lab) -> None:
    lab.send(rows(1, 2))
    lab.run()
    lab.run(Mode.RESTART)
    assert lab.ids() == [1, 1, 2, 2]
    assert (lab.path.parent / "state.before-restart-1" / "offsets" / "0").exists()


def test_what_standbys_rehearse_in_a_checkpoint_is_not_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody would look for it; and nothing else was there."""
    checkpoint = Checkpoint(spark, tmp_path.as_uri())
    (tmp_path / REHEARSALS / "1-a" / "offsets").mkdir(parents=True)
    assert checkpoint.set_aside("restart") is None
    (tmp_path / "metadata").touch()
    assert str(checkpoint.set_aside("restart")).endswith(".before-restart-1")
    assert not tmp_path.exists()


def test_a_plan_with_another_sink_is_told_to_resume(lab: Lab, topic: TopicFactory) -> None:
    lab.send(rows(1))
    lab.run()
    copies = topic(1)
    lab.write_plan(f'[[sink]]\nfrom = "lines"\ntopic = "{copies}"\nvalue = "country"')
    lab.send(rows(2))
    with pytest.raises(ProgressConflict, match="reads its sources 2 times") as caught:
        lab.run()
    assert "--resume" in caught.value.action
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2]
    assert lab.read(copies) == [(None, "France")]


# --------------------------------------------------------------------------------------------------------------- mistakes


def test_mistakes_in_sql_name_the_plans_lines_all_at_once(lab: Lab) -> None:
    extra = """
[[transform]]
name = "wrong"
sql = '''
SELECT country,
       amout FROM lines'''
[[transform]]
name = "after"
sql = "SELECT * FROM wrong"
[[transform]]
name = "harm"
sql = "DROP VIEW lines"
[[sink]]
from = "lines"
topic = "absent"
key = "nope"
value = "id"
"""
    lab.write_plan(extra)
    with pytest.raises(ConfigurationError) as caught:
        lab.run()
    found = "\n".join(caught.value.fields["mistakes"])
    lines = lab.path.read_text().splitlines()

    def at(text: str) -> str:
        return f"pipeline.toml:{lines.index(text) + 1}: "

    assert len(caught.value.fields["mistakes"]) == 5
    assert "transform[2].sql: A column" in found
    assert "`amout` cannot be resolved" in found
    assert "transform[4].sql: Syntax error" in found
    assert f"{at('topic = ' + chr(34) + 'absent' + chr(34))}sink[2].topic: topic absent does not exist" in found
    assert f"{at('key = ' + chr(34) + 'nope' + chr(34))}sink[2].key: " in found
    assert f"{at('value = ' + chr(34) + 'id' + chr(34))}sink[2].value: is int, it must be string or binary" in found
    assert not lab.told(Started)


def test_a_column_of_every_source_is_no_name_for_another(lab: Lab) -> None:
    lab.write_plan(schema='schema = "id INT, country STRING, amount INT, _OFFSET STRING, _partition INT"')
    with pytest.raises(ConfigurationError) as caught:
        lab.run()
    found = "\n".join(caught.value.fields["mistakes"])
    assert "source[0].schema: _partition is a column of every source already" in found
    assert "source[0].schema: _offset is a column of every source already: leave it out" in found
    assert "get_json_object(cast(_value AS STRING), '$._OFFSET')" in found, "a field is spelled as it is in the text"


def test_sinks_that_do_not_go_together_are_a_mistake(lab: Lab) -> None:
    """Each expression is good alone."""
    lab.write_plan(f'[[sink]]\nfrom = "paid"\ntopic = "{lab.revenue}"\nvalue = "explode(array(country, country))"')
    with pytest.raises(ConfigurationError, match="together the sinks cannot be written"):
        lab.run()


def test_a_missing_topic_alone_is_topic_missing_and_created_on_request(lab: Lab, broker: EmbeddedBroker) -> None:
    text = lab.path.read_text().replace(f'topic = "{lab.sales}"', f'topic = "new-{lab.sales}"')
    lab.path.write_text(text)
    with pytest.raises(TopicMissing, match=f"new-{lab.sales} does not exist") as caught:
        lab.run()
    assert caught.value.fields["topics"] == (f"new-{lab.sales}",)
    lab.path.write_text(text.replace("[kafka]", "[kafka]\ncreate_topics = true\npartitions = 3"))
    lab.send(rows(1))
    lab.run()
    assert lab.told(TopicsCreated) == [TopicsCreated((f"new-{lab.sales}",), 3)]
    assert lab.read(f"new-{lab.sales}") == [("France", "1")]


def test_a_broker_that_does_not_answer_is_named(lab: Lab) -> None:
    lab.path.write_text(lab.path.read_text().replace(lab.settings.bootstrap_servers, "127.0.0.1:9"))
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:9"):
        lab.run()


def test_a_timeout_above_the_brokers_is_a_mistake_before_the_start(lab: Lab) -> None:
    lab.write_plan('transaction_timeout = "2 hours"')
    with pytest.raises(ConfigurationError, match=r"transaction.max.timeout.ms \(900 seconds\)"):
        lab.run()


def test_progress_that_may_expire_is_told_at_the_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded broker keeps it for ten years: here that counts as too short."""
    monkeypatch.setattr(preflight, "LEAST_RETENTION_MINUTES", 10**9)
    lab.run()
    (note,) = [event.text for event in lab.events if isinstance(event, Note)]
    assert "progress 5256000 minutes after its last commit (offsets.retention.minutes)" in note
    monkeypatch.undo()
    lab.run()
    assert lab.told(Note) == []


def test_an_error_in_the_batch_is_onceflows_own(lab: Lab) -> None:
    lab.write_plan('compression = "none"', sales_value="value = \"repeat('x', 3000000)\"")
    lab.send(rows(1))
    with pytest.raises(RecordTooLarge, match=lab.sales):
        lab.run()
    lab.write_plan()
    lab.run()
    assert lab.ids() == [1], "nothing was lost"


def test_an_error_in_the_users_sql_names_its_cause(lab: Lab, spark: SparkSession) -> None:
    lab.write_plan(sales_value="value = \"cast(assert_true(id < 0, 'id is not below zero') AS string)\"")
    lab.send(rows(1))
    with pytest.raises(QueryFailed, match="id is not below zero"):
        lab.run()
    assert spark.streams.active == []


def test_a_checkpoint_on_a_file_system_that_is_not_there_is_told(lab: Lab) -> None:
    """It was a traceback of py4j."""
    lab.path.write_text(lab.path.read_text().replace('checkpoint = "state"', 'checkpoint = "nofs://x/state"'))
    with pytest.raises(QueryFailed, match='the checkpoint nofs://x/state: No FileSystem for scheme "nofs"'):
        lab.run()


def test_a_batch_that_is_committed_is_told_as_that_when_spark_fails_behind_it(lab: Lab) -> None:
    """The user was told that nothing of it is visible."""
    lab.send(rows(1))
    lab.run()
    in_the_way = lab.checkpoint("commits/1/x")

    def full(step: str, batch_id: int) -> None:
        if step == "COMMIT":
            in_the_way.mkdir(parents=True)

    lab.send(rows(2))
    with pytest.raises(QueryFailed) as caught:
        lab.run(on_step=full)
    assert "batch 1 is committed" in caught.value.action
    assert lab.ids() == [1, 2]
    shutil.rmtree(in_the_way.parent)
    lab.run()
    assert lab.ids() == [1, 2]


def test_records_deleted_before_they_were_read_are_an_error_and_not_passed_over(lab: Lab) -> None:
    lab.send(rows(1))
    lab.run()
    lab.send(rows(*range(2, 40)))
    admin = AdminClient(lab.settings.for_librdkafka())
    everything = [TopicPartition(lab.lines, partition, OFFSET_END) for partition in range(2)]
    for done in admin.delete_records(everything).values():
        done.result(timeout=30)
    lab.send(rows(40))
    with pytest.raises(InputError, match="deleted before they were read"):
        lab.run()
    assert lab.ids() == [1]
