"""pipeline.toml: what a plan may say, and that every mistake is named with its line, before any I/O and without a secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.config import Duration, PlanFile, load, show
from onceflow.config.lines import find_lines
from onceflow.errors import ConfigurationError

PLAN = """\
name = "retail"
checkpoint = "state/retail"

[trigger]
processing_time = "1 second"

[kafka]
bootstrap_servers = "a:9092,b:9092"
security.protocol = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-256"
sasl.username = "alice"
sasl.password = "${RETAIL_PASSWORD}"

[[source]]
name = "lines"
topics = ["invoices"]
schema = "InvoiceNo STRING, Quantity INT"
max_offsets_per_trigger = 10000
options."kafka.fetch.max.wait.ms" = 20

[[transform]]
name = "sales"
sql = '''
select *, '${spark.app.name}' as app
from lines
'''
watermark = {column = "_timestamp", delay = "10 minutes"}

[[sink]]
from = "sales"
topic = "sales"
key = "InvoiceNo"
value = "to_json(struct(*))"
headers = {trace = "cast(_offset as string)"}
"""
ENVIRONMENT = {"RETAIL_PASSWORD": "s3cr3t"}


def loaded(tmp_path: Path, text: str = PLAN, **environment: str) -> PlanFile:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return load(path, ENVIRONMENT | environment)


def mistakes_in(tmp_path: Path, text: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, text, **environment)
    assert "s3cr3t" not in str(caught.value)
    found = caught.value.fields["mistakes"]
    assert isinstance(found, tuple)
    return found


def line_of(part: str, text: str = PLAN) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


# ------------------------------------------------------------------------------------------------------------ good plans


def test_a_plan_says_what_the_file_says(tmp_path: Path) -> None:
    file = loaded(tmp_path)
    plan = file.plan
    assert plan.trigger.processing_time == Duration(1000)
    assert plan.kafka.options["sasl.password"] == "s3cr3t"
    assert plan.kafka.options["security.protocol"] == "SASL_SSL"
    assert plan.source[0].options == {"kafka.fetch.max.wait.ms": "20"}
    assert plan.transform[0].watermark is not None
    assert str(plan.transform[0].watermark.delay) == "10 minutes"
    assert "${spark.app.name}" in plan.transform[0].sql
    assert plan.sink[0].headers == {"trace": "cast(_offset as string)"}
    assert file.checkpoint == str(tmp_path / "state/retail")


def test_the_smallest_plan_takes_the_safe_defaults(tmp_path: Path) -> None:
    text = 'name="p"\n[[source]]\nname="s"\ntopics="a, b"\nformat="raw"\n[[sink]]\nfrom="s"\ntopic="t"\nvalue="value"'
    file = loaded(tmp_path, text)
    plan = file.plan
    assert plan.guarantee == "exactly_once"
    assert plan.source[0].topics == ("a", "b")
    assert plan.source[0].starting_offsets == "earliest"
    assert plan.source[0].on_malformed == "fail"
    assert plan.kafka.bootstrap_servers is None
    assert plan.kafka.creates_topics
    assert file.checkpoint == str(tmp_path / ".onceflow/checkpoints/p")


def test_a_checkpoint_elsewhere_is_left_as_it_is(tmp_path: Path) -> None:
    assert loaded(tmp_path, PLAN.replace("state/retail", "s3a://b/retail")).checkpoint == "s3a://b/retail"


def test_a_plan_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded(tmp_path).plan.name = "other"


def test_the_users_cluster_gets_no_topics_unless_asked(tmp_path: Path) -> None:
    assert not loaded(tmp_path).plan.kafka.creates_topics
    assert loaded(tmp_path, PLAN.replace("[kafka]", "[kafka]\ncreate_topics = true")).plan.kafka.creates_topics


def test_offsets_to_start_from_are_read_per_partition(tmp_path: Path) -> None:
    text = PLAN.replace(
        'topics = ["invoices"]', 'topics = ["invoices"]\nstarting_offsets = {invoices = {0 = 5, 1 = 7}}'
    )
    assert loaded(tmp_path, text).plan.source[0].starting_offsets == {"invoices": {0: 5, 1: 7}}


@pytest.mark.parametrize(
    "wrong", ["1.5", "120.0", "true", "-3", '"5.0"', '"05"', '" 5"', '"-3"', "[5]", "{}", "1979-05-27"]
)
def test_an_offset_is_neither_rounded_nor_guessed(tmp_path: Path, wrong: str) -> None:
    """1.5 was read as 1, and true as 1: records were read again, or passed over."""
    text = PLAN.replace(
        'topics = ["invoices"]', f'topics = ["invoices"]\nstarting_offsets = {{invoices = {{0 = {wrong}}}}}'
    )
    (mistake,) = mistakes_in(tmp_path, text)
    assert "source[0].starting_offsets: must be " in mistake


def test_an_offset_may_come_from_the_environment(tmp_path: Path) -> None:
    """What an error tells its user to give: text there, as all variables are."""
    text = PLAN.replace(
        'topics = ["invoices"]', 'topics = ["invoices"]\nstarting_offsets = {invoices = {0 = 5, 1 = "${FROM}"}}'
    )
    given = {"ONCEFLOW_SOURCE__0__STARTING_OFFSETS__INVOICES__0": "120", "FROM": "-2"}
    assert loaded(tmp_path, text, **given).plan.source[0].starting_offsets == {"invoices": {0: 120, 1: -2}}


@pytest.mark.parametrize("said", ['\nstarting_offsets = "earliest"', ""])
def test_offsets_from_the_environment_take_the_place_of_a_text(tmp_path: Path, said: str) -> None:
    """They were passed over: who restarts behind what was written would write all of it again."""
    text = PLAN.replace('topics = ["invoices"]', f'topics = ["invoices"]{said}')
    given = {f"ONCEFLOW_SOURCE__LINES__STARTING_OFFSETS__INVOICES__{number}": "120" for number in (0, 1)}
    assert loaded(tmp_path, text, **given).plan.source[0].starting_offsets == {"invoices": {0: 120, 1: 120}}


INTO = {
    "ONCEFLOW_SINK__0__TOPIC__EXPR": "ONCEFLOW_SINK__0__TOPIC_EXPR",
    "ONCEFLOW_SINK__0__TOPIC__": "ONCEFLOW_SINK__0__TOPIC",
    "ONCEFLOW_SOURCE__LINES__TOPICS__0": "ONCEFLOW_SOURCE__LINES__TOPICS",
}


@pytest.mark.parametrize(("variable", "meant"), INTO.items())
def test_a_variable_that_goes_into_what_is_no_table_is_a_mistake(tmp_path: Path, variable: str, meant: str) -> None:
    """It was passed over: the records went to the topic that the file names."""
    (mistake,) = mistakes_in(tmp_path, PLAN, **{variable: "x"})
    assert mistake.startswith(f"{variable}: names no setting: topic")
    assert mistake.endswith(f"did you mean {meant}?")


def test_two_variables_of_which_one_goes_into_the_other_are_a_mistake(tmp_path: Path) -> None:
    text = PLAN.replace('topic = "sales"\n', "")
    (mistake,) = mistakes_in(tmp_path, text, ONCEFLOW_SINK__0__TOPIC="x", ONCEFLOW_SINK__0__TOPIC__EXPR="y")
    assert "sink[0].topic: " in mistake


def test_a_variable_that_the_plan_names_is_no_misspelled_setting(tmp_path: Path) -> None:
    given = {"ONCEFLOW_SINK_TOPIC": "totals", "ONCEFLOW_CHECKPOINTS": "/data"}
    text = re.sub(
        "^checkpoint = .*", 'checkpoint = "${ONCEFLOW_CHECKPOINTS}/${ONCEFLOW_SINK_TOPIC}"', PLAN, flags=re.MULTILINE
    )
    assert loaded(tmp_path, text, **given).plan.checkpoint == "/data/totals"


@pytest.mark.parametrize("partitions", ["0 = 5, 00 = 7", "1_0 = 5", '"+1" = 5', '" 1" = 5', '"\u0661" = 5', "a = 5"])
def test_a_partition_has_one_spelling(tmp_path: Path, partitions: str) -> None:
    """0 and 00 were one partition, and the last of them counted."""
    text = PLAN.replace(
        'topics = ["invoices"]', f'topics = ["invoices"]\nstarting_offsets = {{invoices = {{{partitions}}}}}'
    )
    (mistake,) = mistakes_in(tmp_path, text)
    assert "source[0].starting_offsets: must be " in mistake


@pytest.mark.parametrize("wrong", ["true", "4.0", "0"])
def test_a_count_is_a_whole_number(tmp_path: Path, wrong: str) -> None:
    text = PLAN.replace("max_offsets_per_trigger = 10000", f"max_offsets_per_trigger = {wrong}")
    (mistake,) = mistakes_in(tmp_path, text)
    assert "source[0].max_offsets_per_trigger: must be " in mistake


@pytest.mark.parametrize(
    ("text", "ms", "words"),
    [("500 ms", 500, "500 milliseconds"), ("1 second", 1000, "1 second"), ("90s", 90_000, "90 seconds"),
     ("2 Hours", 7_200_000, "2 hours"), ("0 seconds", 0, "0 milliseconds")],
)  # fmt: skip
def test_durations(text: str, ms: int, words: str) -> None:
    assert Duration.parse(text) == Duration(ms)
    assert str(Duration(ms)) == words


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_survives_its_words(ms: int) -> None:
    assert Duration.parse(str(Duration(ms))) == Duration(ms)


# ----------------------------------------------------------------------------------------------------------- environment


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = loaded(
        tmp_path,
        ONCEFLOW_GUARANTEE="at_least_once",
        ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS="c:1",
        ONCEFLOW_KAFKA__SASL__PASSWORD="${not expanded}",
        ONCEFLOW_SOURCE__LINES__MAX_OFFSETS_PER_TRIGGER="5",
        ONCEFLOW_SOURCE__LINES__TOPICS="x,y",
        ONCEFLOW_SINK__0__TOPIC="elsewhere",
        ONCEFLOW_TRIGGER__PROCESSING_TIME="2 seconds",
        ONCEFLOW_SPARK__SQL__SHUFFLE__PARTITIONS="3",
        ONCEFLOW_HOME="/somewhere",
    )
    plan = file.plan
    assert plan.guarantee == "at_least_once"
    assert plan.kafka.bootstrap_servers == "c:1"
    assert plan.kafka.options["sasl.password"] == "${not expanded}"
    assert plan.source[0].max_offsets_per_trigger == 5
    assert plan.source[0].topics == ("x", "y")
    assert plan.sink[0].topic == "elsewhere"
    assert plan.trigger.processing_time == Duration(2000)
    assert plan.spark == {"sql.shuffle.partitions": "3"}


def test_an_override_replaces_a_reference_that_is_not_set(tmp_path: Path) -> None:
    text = PLAN.replace("RETAIL_PASSWORD", "ABSENT")
    assert loaded(tmp_path, text, ONCEFLOW_KAFKA__SASL__PASSWORD="x").plan.kafka.options["sasl.password"] == "x"


def test_overrides_find_names_with_capitals(tmp_path: Path) -> None:
    text = PLAN + '[spark]\n"spark.sql.session.timeZone" = "UTC"\n'
    file = loaded(tmp_path, text, ONCEFLOW_SPARK__SPARK__SQL__SESSION__TIMEZONE="CET")
    assert file.plan.spark == {"spark.sql.session.timeZone": "CET"}


def test_a_wrong_value_from_the_environment_names_the_variable(tmp_path: Path) -> None:
    (mistake,) = mistakes_in(tmp_path, PLAN, ONCEFLOW_GUARANTEE="perhaps")
    assert mistake.startswith("ONCEFLOW_GUARANTEE: guarantee: must be 'exactly_once'")


@pytest.mark.parametrize("spelled", ["spark.sql.session.timeZone", "sql.session.timeZone", None])
def test_a_spark_setting_from_the_environment_is_spelled_as_spark_does(tmp_path: Path, spelled: str | None) -> None:
    """Spark takes sql.session.timezone without a word, and goes on in the old time zone; nor are there two of one name."""
    text = PLAN + (f'[spark]\n"{spelled}" = "UTC"\n' if spelled else "")
    spark = loaded(tmp_path, text, ONCEFLOW_SPARK__SQL__SESSION__TIMEZONE="CET").plan.spark
    assert spark == {spelled or "spark.sql.session.timeZone": "CET"}


NEARLY = {
    "ONCEFLOW_KAFKA_BOOTSTRAP_SERVERS": "ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS",
    "ONCEFLOW_KAFKA_BOOTSTRAP_SERVER": "ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS",
    "ONCEFLOW_BOOTSTRAP_SERVERS": "ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS",
    "ONCEFLOW__KAFKA__BOOTSTRAP_SERVERS": "ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS",
    "ONCEFLOW_KAFKA_SASL_PASSWORD": "ONCEFLOW_KAFKA__SASL__PASSWORD",
    "ONCEFLOW_GARANTEE": "ONCEFLOW_GUARANTEE",
    "ONCEFLOW_CHECKPOINT_": "ONCEFLOW_CHECKPOINT",
    "ONCEFLOW_TRIGGER_AVAILABLE_NOW": "ONCEFLOW_TRIGGER__AVAILABLE_NOW",
    "ONCEFLOW_TRANSACTION_TIMEOUT": "ONCEFLOW_OUTPUT__TRANSACTION_TIMEOUT",
    "ONCEFLOW_SOURCE_LINES_TOPICS": "ONCEFLOW_SOURCE__LINES__TOPICS",
    "ONCEFLOW_SOURCE_LINES__TOPICS": "ONCEFLOW_SOURCE__LINES__TOPICS",
    "ONCEFLOW_SOURCE_LINES_OPTIONS_MINPARTITIONS": "ONCEFLOW_SOURCE__LINES__OPTIONS__MINPARTITIONS",
    "ONCEFLOW_TRANSFORM_SALES_WATERMARK_DELAY": "ONCEFLOW_TRANSFORM__SALES__WATERMARK__DELAY",
    "ONCEFLOW_SINK_0_TOPIC": "ONCEFLOW_SINK__0__TOPIC",
    "ONCEFLOW_SINK_TOPIC": "ONCEFLOW_SINK__0__TOPIC",
    "ONCEFLOW_SPARK_MASTER": "ONCEFLOW_SPARK__MASTER",
}


@pytest.mark.parametrize(("variable", "meant"), NEARLY.items())
def test_a_variable_that_is_nearly_a_setting_is_a_mistake(tmp_path: Path, variable: str, meant: str) -> None:
    """It was passed over: the pipeline ran on the cluster, or under the guarantee, that the file names."""
    (mistake,) = mistakes_in(tmp_path, PLAN, **{variable: "x"})
    assert mistake.startswith(f"{variable}: ")
    assert mistake.endswith(f"did you mean {meant}?")


def test_what_others_call_onceflow_is_left_alone(tmp_path: Path) -> None:
    """Of ours, and of Kubernetes, which makes seven variables for a service of the name onceflow-kafka."""
    services = [
        f"ONCEFLOW_{service}_{what}"
        for service in ("KAFKA", "SOURCE", "SINK", "SPARK", "OUTPUT")
        for what in (
            "SERVICE_HOST",
            "SERVICE_PORT",
            "PORT",
            "PORT_9092_TCP",
            "PORT_9092_TCP_PROTO",
            "PORT_9092_TCP_ADDR",
        )
    ]
    others = [
        "ONCEFLOW_OUTBOX",
        "ONCEFLOW_HOME",
        "ONCEFLOW_SERVICE_HOST",
        "ONCEFLOW_LOG_LEVEL",
        "ONCEFLOW_VERSION",
        *services,
    ]
    assert loaded(tmp_path, PLAN, **dict.fromkeys(others, "x")).plan == loaded(tmp_path).plan


def test_an_override_without_a_name_is_not_the_first_sinks(tmp_path: Path) -> None:
    (mistake,) = mistakes_in(tmp_path, PLAN, ONCEFLOW_SINK____TOPIC="elsewhere")
    assert mistake.startswith("ONCEFLOW_SINK____TOPIC: there is no sink ''")


@pytest.mark.parametrize("name", ["ONCEFLOW_KAFKKA__X", "ONCEFLOW_SOURCE__NOPE__TOPICS", "ONCEFLOW_SINK__7__TOPIC"])
def test_a_variable_that_names_nothing_is_a_mistake(tmp_path: Path, name: str) -> None:
    (mistake,) = mistakes_in(tmp_path, PLAN, **{name: "x"})
    assert mistake.startswith(f"{name}: ")


def test_a_reference_that_is_not_set_is_a_mistake(tmp_path: Path) -> None:
    text = PLAN.replace("RETAIL_PASSWORD", "ABSENT")
    (mistake,) = mistakes_in(tmp_path, text)
    where = f"pipeline.toml:{line_of('ABSENT', text)}: kafka.sasl.password"
    assert mistake == f"{where}: the environment variable ABSENT is not set"


def test_a_doubled_dollar_is_no_reference(tmp_path: Path) -> None:
    text = PLAN.replace("${RETAIL_PASSWORD}", "a$${b}")
    assert loaded(tmp_path, text).plan.kafka.options["sasl.password"] == "a${b}"


# -------------------------------------------------------------------------------------------------------------- mistakes


def test_all_mistakes_come_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = (
        PLAN.replace('checkpoint = "state', 'chekpoint = "state')
        .replace('"1 second"', '"soon"')
        .replace('"SCRAM-SHA-256"', '"MAGIC"')
        .replace('from = "sales"', 'from = "sale"')
        .replace('topic = "sales"', 'topic = "sales!"')
        .replace("max_offsets_per_trigger = 10000", "max_offsets_per_trigger = -1")
    )
    found = mistakes_in(tmp_path, text, ONCEFLOW_NOPE__X="1")
    assert [m.split(": ")[1] for m in found] == [
        "chekpoint", "trigger.processing_time", "kafka.sasl.mechanism", "source[0].max_offsets_per_trigger",
        "sink[0].from", "sink[0].topic", "names no setting; sections are trigger, kafka, output, spark, source, "
        "transform, sink",
    ]  # fmt: skip
    assert found[0].startswith("pipeline.toml:2: chekpoint: unknown setting, did you mean checkpoint?")
    assert found[4].startswith(f"pipeline.toml:{line_of('from =', text)}: ")
    assert "did you mean sales?" in found[4]


@pytest.mark.parametrize(
    ("old", "new", "setting", "part"),
    [
        ('name = "retail"', "", "name", "is missing"),
        ('name = "retail"', 'name = "a b"', "name", "'a b' does not fit"),
        ('name = "retail"', 'name = "ingest-day"', "name", "is that of the ingest 'day'"),
        ('name = "retail"', 'name = "outbox-shop"', "name", "is that of the outbox 'shop'"),
        ('name = "retail"', 'name = "r"\nguarantee = "twice"', "guarantee", "is 'twice'"),
        ('name = "lines"', 'name = "_lines"', "source[0].name", "does not fit"),
        ('name = "sales"', 'name = "LINES"', "transform[0].name", "is the name of a source already"),
        ('topics = ["invoices"]', "", "source[0]", "either topics or pattern"),
        ('topics = ["invoices"]', 'topics = ["a"]\npattern = "b"', "source[0].topics", "either topics or pattern"),
        ('topics = ["invoices"]', 'pattern = "("', "source[0].pattern", "not a regular expression"),
        ('topics = ["invoices"]', 'topics = ["onceflow-progress"]', "source[0].topics", "own progress"),
        ('topics = ["invoices"]', 'topics = ["onceflow-probe"]', "source[0].topics", "own progress"),
        ('topics = ["invoices"]', 'topics = "x"\nstarting_offsets = "now"', "source[0].starting_offsets", "table of"),
        ('topics = ["invoices"]', 'topics="x"\nstarting_offsets={y={0=1}}', "source[0].starting_offsets", "not among"),
        ('schema = "InvoiceNo STRING, Quantity INT"', "", "source[0]", "needs one"),
        ("options.", 'options."failOnDataLoss" = false\noptions.', "source[0].options.failOnDataLoss", "in silence"),
        ("options.", 'options."kafka.isolation.level" = "x"\noptions.', "source[0].options", "committed records only"),
        ("options.", 'options."minPartition" = 1\noptions.', "source[0].options", "did you mean minPartitions?"),
        ("options.", 'options."kafka.client.id" = 1\noptions.', "source[0].options", "set it in [kafka]"),
        ("options.", 'options."subscribe" = "x"\noptions.', "source[0].options", "give it as topics"),
        ('topic = "sales"', "", "sink[0]", "either topic"),
        ('topic = "sales"', 'topic = "a"\ntopic_expr = "b"', "sink[0].topic", "either topic"),
        ("value = ", "valu = ", "sink[0].valu", "did you mean value?"),
        ("value = ", "valu = ", "sink[0]", "value: is missing"),
        ('processing_time = "1 second"', 'processing_time = "1 s"\navailable_now = true', "trigger", "keep one"),
        ('processing_time = "1 second"', 'processing_time = "5 minutes"', "output", "below the trigger"),
        ("[trigger]", '[output]\ntransaction_timeout = "10 ms"\n[trigger]', "output", "below the trigger"),
        ("[trigger]", '[output]\nmode = "complete"\n[trigger]', "output.mode", "must be 'append' or 'update'"),
        ("[kafka]", '[kafka]\nacks.x = "1"', "kafka.acks.x", "unknown setting"),
        ("[kafka]", '[kafka]\n"isolation.level" = "x"', "kafka.isolation.level", "cannot be set"),
        ("[kafka]", "[kafka]\nbootstrap_server = 1", "kafka.bootstrap_server", "did you mean bootstrap_servers?"),
        ('bootstrap_servers = "a:9092,b:9092"', "", "kafka.security.protocol", "takes no client options"),
        ("[trigger]", "[spark]\nsql.streaming.stateStore.checkpointFormatVersion = 1\n[trigger]", "spark", "must be 2"),
        ("[trigger]", "[spark]\nx = [1]\n[trigger]", "spark", "values must be text"),
        ("[trigger]", '[spark]\n"a.b" = 1\na.b = 2\n[trigger]', "spark", "a.b is given twice"),
        ("[trigger]", "[spark]\nspark.a.b = 1\na.b = 2\n[trigger]", "spark.a.b", "is given as spark.a.b too"),
        ('sasl.username = "alice"', 'sasl.username = "a"\n"sasl.username" = "b"', "kafka", "is given twice"),
        ("[trigger]", "[trigger", "", "this is not TOML"),
    ],
)
def test_a_mistake_names_its_setting_and_line(tmp_path: Path, old: str, new: str, setting: str, part: str) -> None:
    assert old in PLAN
    found = mistakes_in(tmp_path, PLAN.replace(old, new, 1))
    assert any(part in m and f": {setting}" in m and m.startswith("pipeline.toml") for m in found), found


@pytest.mark.parametrize("source", ['topics = ["invoices", "sales"]', 'pattern = "sal.*|invoices"'])
def test_a_plan_that_reads_what_it_writes_is_refused_unless_it_says_so(tmp_path: Path, source: str) -> None:
    text = PLAN.replace('topics = ["invoices"]', source)
    (mistake,) = mistakes_in(tmp_path, text)
    assert mistake.startswith(
        f"pipeline.toml:{line_of('topic = ', text)}: sink[0].topic: sales is read by source lines: "
    )
    assert "feeds_back = true" in mistake
    assert loaded(tmp_path, f"{text}feeds_back = true\n").plan.sink[0].feeds_back


def test_a_pattern_is_of_whole_names(tmp_path: Path) -> None:
    loaded(tmp_path, PLAN.replace('topics = ["invoices"]', 'pattern = "sale"'))
    (mistake,) = mistakes_in(tmp_path, f"{PLAN}feeds_back = true\n")
    assert "sink[0].feeds_back: no source reads sales" in mistake


def test_a_plan_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="onceflow init"):
        load(tmp_path / "absent.toml", {})


def test_a_section_of_the_wrong_kind_is_a_mistake_not_a_crash(tmp_path: Path) -> None:
    for text in ('kafka = "x"', "source = 1", "source = [1]", "spark = 3", '[source]\nname="x"', "sink = [[]]"):
        assert mistakes_in(tmp_path, text, ONCEFLOW_KAFKA__X__Y="1", ONCEFLOW_SPARK__X="1")


# ------------------------------------------------------------------------------------------------------------------ show


def test_the_shown_plan_hides_secrets_and_says_where_values_come_from(tmp_path: Path) -> None:
    text = PLAN + '[spark]\n"spark.hadoop.fs.s3a.secret.key" = "s3cr3t"\n"spark.x" = "${RETAIL_PASSWORD}"\n'
    rows = {name: (value, origin) for name, value, origin in show(loaded(tmp_path, text, ONCEFLOW_NAME="other"))}
    assert "s3cr3t" not in str(rows)
    assert rows["name"] == ('"other"', "ONCEFLOW_NAME")
    assert rows["kafka.sasl.password"] == ("********", f"pipeline.toml:{line_of('sasl.password')}")
    assert rows["spark.spark.x"][0] == '"${RETAIL_PASSWORD}"'
    assert rows["guarantee"] == ('"exactly_once"', "default")
    assert rows["transform[0].watermark.delay"][0] == '"10 minutes"'
    assert rows["output.transaction_timeout"] == ('"1 minute"', "default")


@pytest.mark.parametrize(
    "name",
    [
        "fs.s3a.secret.key",
        "fs.s3a.encryption.key",
        "fs.gs.auth.service.account.private.key",
        "fs.azure.sas.fixed.token.a",
        "fs.azure.sas.box.account",
        "fs.azure.account.key.a",
    ],
)
def test_what_opens_a_store_is_hidden(tmp_path: Path, name: str) -> None:
    rows = {
        name: value for name, value, _ in show(loaded(tmp_path, f'{PLAN}[spark]\n"spark.hadoop.{name}" = "s3cr3t"\n'))
    }
    assert rows[f"spark.spark.hadoop.{name}"] == "********"


# ----------------------------------------------------------------------------------------------------------------- lines


def test_lines_are_found_in_every_form_of_toml() -> None:
    text = (
        '# [no]\na = "x = y" # b = 1\n[t]\n"q.r" = 1\ns.u = 2\n[[v]]\nw = [\n 1, # ]\n 2,\n]\n[v.x]\ny = 1\n  [[ v ]] # c\n'
        'z = """\n[no]\nn = 1\n"""\nm = {k = """\n"""}\nl = \'\'\'\n\'\'\'\nlast = 1\r\n["o p"]\nq = 3'
    )
    known = find_lines(text).known
    expected = {
        "a": 2, "t": 3, "t.q.r": 4, "t.s.u": 5, "v[0].w": 7, "v[0].x.y": 12, "v[1]": 13, "v[1].z": 14, "v[1].m": 18,
        "v[1].l": 20, "v[1].last": 22, "o p": 23, "o p.q": 24,
    }  # fmt: skip
    assert {name: known.get(name) for name in expected} == expected
    assert not [name for name in known if "no" in name or name in ("b", "n")]
