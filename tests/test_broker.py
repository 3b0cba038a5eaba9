"""The embedded broker, started for real in each test that stops, kills or misconfigures it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.admin import KafkaAdminClient
from tests.faults.newer import NEWER
from tests.new_topics import create

from onceflow.broker import EmbeddedBroker, run_java_tool, settings
from onceflow.broker.home import BrokerHome
from onceflow.errors import BrokerStartError, ConfigurationError, SetupError

TIMEOUT_S = 60
HEAP_MB = 256


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A broker's directory; a broker that a failed test left there is killed."""
    yield tmp_path / "broker"
    EmbeddedBroker(tmp_path / "broker").kill()


def small(directory: Path, **options: object) -> EmbeddedBroker:
    return EmbeddedBroker(directory, heap_mb=HEAP_MB, **options)  # type: ignore[arg-type]


def write(broker: EmbeddedBroker, topic: str, values: list[str]) -> None:
    in_order = {"max.in.flight.requests.per.connection": 1}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", **in_order})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(TIMEOUT_S) == 0


def read(broker: EmbeddedBroker, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=TIMEOUT_S)
        return [(message.value() or b"").decode() for message in messages]
    finally:
        consumer.close()


def make_topic(broker: EmbeddedBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    create(admin, NewTopic(name, 1, 1), TIMEOUT_S)


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process, with the same onceflow."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


START = """
import sys
from onceflow.broker import EmbeddedBroker
broker = EmbeddedBroker(sys.argv[1], heap_mb=256, detached=sys.argv[2] == "detached").start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("version", [1, 2])
def test_the_transaction_version_is_the_one_asked_for(version: int, request: pytest.FixtureRequest) -> None:
    broker = request.getfixturevalue("broker" if version == 2 else "broker_v1")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        assert admin.describe_features()["transaction.version"]["finalized"][1] == version
    finally:
        admin.close()
    assert broker.status().transaction_version == version


def test_it_listens_on_this_machine_alone(broker: EmbeddedBroker) -> None:
    host, port = broker.bootstrap_servers.split(":")
    assert host == "127.0.0.1"
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", int(port))) != 0


def test_a_program_of_kafka_reads_what_was_written(broker: EmbeddedBroker) -> None:
    make_topic(broker, "for-the-console")
    write(broker, "for-the-console", ["one", "two"])
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "for-the-console", "--from-beginning"]
    arguments += ["--max-messages", "2", "--timeout-ms", "30000"]
    said = run_java_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == ["one", "two"]


def test_a_java_program_that_does_not_end_is_killed(broker: EmbeddedBroker) -> None:
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "onceflow-nothing"]
    with pytest.raises(SetupError, match="did not end within 2 s"):
        run_java_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments, timeout_s=2)


@pytest.mark.faults
def test_its_life(directory: Path) -> None:
    broker = small(directory)
    with pytest.raises(SetupError, match="no broker was started"):
        _ = broker.bootstrap_servers

    broker.start()
    address, first_pid = broker.bootstrap_servers, broker.pid
    assert broker.status().running
    make_topic(broker, "kept")
    write(broker, "kept", ["before"])

    broker.restart()
    assert broker.bootstrap_servers == address
    assert broker.pid not in (None, first_pid)
    write(broker, "kept", ["after a restart"])

    broker.kill()
    assert broker.status().pid is None
    broker.start()
    assert broker.bootstrap_servers == address
    assert read(broker, "kept", 2) == ["before", "after a restart"]

    broker.stop()
    broker.stop()
    status = broker.status()
    assert (status.running, status.bootstrap_servers) == (False, address)


@pytest.mark.faults
def test_what_its_jvm_unpacks_stays_in_its_directory_and_goes_with_the_next_start(directory: Path) -> None:
    """lz4's native library, which a JVM that is killed does not remove."""
    unpacked: list[list[str]] = []
    with small(directory) as broker:
        make_topic(broker, "packed")
        for _ in range(2):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
            for number in range(100):
                producer.produce("packed", f"{number} {'x' * 1000}")
            assert producer.flush(TIMEOUT_S) == 0
            unpacked.append([each.name for each in (directory / "broker.tmp").glob("*lz4*")])
            broker.kill()
            broker.start()
    first, second = map(set, unpacked)
    assert first
    assert second
    assert not first & second


def test_what_is_in_the_place_of_what_its_jvm_unpacks_is_not_removed(directory: Path) -> None:
    (directory / "broker.tmp" / "mine").mkdir(parents=True)
    with pytest.raises(BrokerStartError, match=r"broker.tmp cannot be emptied"):
        small(directory).start()
    assert (directory / "broker.tmp" / "mine").is_dir()


def test_another_process_is_refused_and_finds_and_stops_it(directory: Path) -> None:
    starter = python(START, directory, "attached")
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())

        with pytest.raises(BrokerStartError, match=f"a broker runs already in .*pid {pid}") as raised:
            small(directory).start()
        assert "EmbeddedBroker.attach" in raised.value.action

        found = EmbeddedBroker.attach(directory)
        assert (found.pid, found.is_running) == (pid, True)
        make_topic(found, "found")
        found.stop()
        assert not found.is_running
        starter.communicate(timeout=TIMEOUT_S)
    assert starter.returncode == 0


def test_attach_where_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no broker runs in"):
        EmbeddedBroker.attach(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["attached", "detached"])
def test_what_happens_to_it_when_its_starter_is_killed(directory: Path, kind: str) -> None:
    starter = python(START, directory, kind)
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.send_signal(signal.SIGKILL)
    home = BrokerHome(directory)
    if kind == "attached":
        assert home.wait_gone(TIMEOUT_S)
        return
    found = EmbeddedBroker.attach(directory)
    make_topic(found, "outlives")
    assert found.pid == pid
    found.stop()
    assert not home.is_running()


@pytest.mark.faults
def test_a_broker_that_dies_at_the_start_shows_its_log(directory: Path) -> None:
    with pytest.raises(BrokerStartError, match=r"died: it does not listen. The end of its log:") as raised:
        small(directory, config={"metric.reporters": "no.such.Reporter"}).start()
    assert "no.such.Reporter" in str(raised.value)
    assert "\tat " not in str(raised.value)
    assert not small(directory).is_running


@pytest.mark.faults
@pytest.mark.long
def test_files_of_a_newer_kafka_are_told_and_left_as_they_are(directory: Path) -> None:
    with small(directory, installation=NEWER):
        pass
    with pytest.raises(BrokerStartError, match="died") as raised:
        small(directory).start()
    assert raised.value.action.startswith("its files are of a newer Kafka: run that one with them")
    with small(directory, installation=NEWER) as broker:
        assert broker.status().running


@pytest.mark.faults
def test_a_broker_that_is_not_ready_in_time_is_killed(directory: Path) -> None:
    small(directory).start().stop()
    with pytest.raises(BrokerStartError, match="was not ready after 0 s"):
        small(directory, start_timeout_s=0.01).start()
    assert not small(directory).is_running


def test_a_storage_that_cannot_be_formatted(directory: Path) -> None:
    with pytest.raises(BrokerStartError, match=r"could not be formatted:(.|\n)*log.segment.bytes"):
        small(directory, config={"log.segment.bytes": "many"}).start()


def test_a_taken_port_is_told_before_anything_starts(directory: Path) -> None:
    with socket.create_server((settings.HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BrokerStartError, match=f"port {port} of 127.0.0.1 is taken") as raised:
            small(directory, port=port).start()
    assert raised.value.fields["port"] == port


@pytest.mark.faults
def test_the_transaction_version_of_a_directory_stays(directory: Path) -> None:
    port = settings.free_ports(1)[0]
    with small(directory, transaction_version=1, port=port) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"
    with pytest.raises(BrokerStartError, match=r"has transaction\.version=1, not 2"):
        small(directory).start()


def test_what_makes_the_node_this_node_cannot_be_set(directory: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        small(directory, config={"node.id": "7", "log.dirs": "elsewhere", "num.partitions": "3"}).start()
    mistakes = raised.value.fields["mistakes"]
    assert [mistake.split()[0] for mistake in mistakes] == ["log.dirs", "node.id"]


def test_a_directory_with_a_comma_is_refused(tmp_path: Path) -> None:
    """Kafka took it for two: its data was in neither, and the next start failed."""
    with pytest.raises(ConfigurationError, match="has a comma in its name"):
        EmbeddedBroker(tmp_path / "a,b").start()
    assert not (tmp_path / "a,b" / "server.properties").exists()


def test_an_unreadable_state_file_is_told(directory: Path) -> None:
    directory.mkdir()
    (directory / "broker.json").write_text("{}")
    with pytest.raises(BrokerStartError, match="is not a state file"):
        small(directory).status()
    (directory / "broker.json").unlink()


def test_a_stale_pid_is_never_believed(directory: Path) -> None:
    directory.mkdir()
    state = {"port": 1, "controller_port": 2, "transaction_version": 2, "pid": os.getpid(), "started_at": 0.0}
    (directory / "broker.json").write_text(json.dumps(state))
    broker = small(directory)
    assert (broker.is_running, broker.pid) == (False, None)
    broker.kill()


def test_ports_lie_outside_the_systems_own_range() -> None:
    assert all(port < 32768 for port in settings.free_ports(3))


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was given it before has perhaps not begun to listen there."""
    monkeypatch.setattr(settings, "_PORTS", settings._PORTS[:200])
    monkeypatch.setattr(settings, "_PORT_TRIES", 200)
    monkeypatch.setattr(settings, "_given", deque(maxlen=256))
    given = [port for _ in range(8) for port in settings.free_ports(10)]
    assert len(set(given)) == 80


def test_a_broker_of_no_known_transaction_version(tmp_path: Path) -> None:
    with pytest.raises(BrokerStartError, match="may be 0, 1 or 2"):
        EmbeddedBroker(tmp_path, transaction_version=3)
