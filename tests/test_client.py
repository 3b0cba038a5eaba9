"""The client of Kafka's protocol, on a real broker beside servers that are none."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from kafka.errors import SaslAuthenticationFailedError
from kafka.protocol.metadata import MetadataRequest
from tests.left_open import left_open

from onceflow.broker import EmbeddedBroker
from onceflow.errors import BrokerUnreachable
from onceflow.kafka import dial
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import TRANSACTION, KafkaClient
from onceflow.kafka.loop import Loop
from onceflow.kafka.settings import ClusterSettings
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis

WRITTEN_NEVER = 100_000  # topics, whose names are 24 MB: more than a connection holds
SILENT = 3  # with which server a process begins depends on its id: probably with one of them


@pytest.fixture
def silent() -> Iterator[list[str]]:
    """The addresses of servers that accept connections and never say a word."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(SILENT)]
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def test_servers_that_never_answer_do_not_use_up_the_patience(silent: list[str], broker: EmbeddedBroker) -> None:
    servers = [*silent, broker.bootstrap_servers]
    with KafkaClient({"bootstrap_servers": servers}, patience_s=60) as client:
        assert client.transaction_version() == 2


def test_a_refused_bootstrap_server_is_passed_over_within_a_slice(broker: EmbeddedBroker) -> None:
    servers = ["127.0.0.1:9", broker.bootstrap_servers]
    with KafkaClient({"bootstrap_servers": servers}, patience_s=60) as client:
        assert client.transaction_version() == 2


@pytest.fixture
def resetting() -> Iterator[str]:
    """The address of a server that resets every connection at its first bytes."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        server.join()


def test_tries_to_connect_that_fail_leave_no_socket_open(silent: list[str], resetting: str) -> None:
    nobody = "127.0.0.1:9"
    assert not _left_open({"bootstrap_servers": [nobody]})
    assert not _left_open({"bootstrap_servers": [nobody], "proxy_url": f"http://{silent[0]}"})
    assert not _left_open({"bootstrap_servers": [nobody], "proxy_url": f"http://{resetting}"})
    assert not _left_open({"bootstrap_servers": silent, "security_protocol": "SSL"})
    assert not _left_open({"bootstrap_servers": [resetting], "security_protocol": "SSL"})


def _left_open(options: Mapping[str, Any]) -> list[str]:
    """What a client that reaches no broker leaves open."""
    with left_open() as texts, pytest.raises(BrokerUnreachable), KafkaClient(options, patience_s=0.5):
        pass
    return texts


def test_a_client_that_is_closed_in_the_middle_of_a_write_leaves_no_socket_open(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker reads no more, and what waits to be written is more than the network takes."""
    with left_open() as texts, Wire() as wire:
        _close_in_the_middle_of_a_write(wire, broker.bootstrap_servers)
    assert not texts
    # What librdkafka says comes from an AdminClient of a test before, whose server is gone: nothing here is one.
    ours = [record for record in caplog.records if record.name != "onceflow.kafka.librdkafka"]
    assert not [record for record in ours if record.levelno >= logging.ERROR]


def _close_in_the_middle_of_a_write(wire: Wire, servers: str) -> None:
    stalled = Rule(Do.DELAY, frozenset({apis.METADATA}), Direction.REQUEST, delay_s=600)
    with KafkaClient({"bootstrap_servers": [servers], "proxy_url": wire.url}, patience_s=60) as client:
        client.ask(1, _metadata_of(1))
        with wire.rules.during(stalled) as (stalling,):
            client.send(1, _metadata_of(1), lambda _: None)
            assert stalling.wait_applied()
            client.send(1, _metadata_of(WRITTEN_NEVER), lambda _: None)
            wait_until_stuck(lambda: client._manager.run(lambda: _left_to_write(client)))
            client.close()


def _left_to_write(client: KafkaClient) -> int:
    return sum(map(len, client._manager._conns[1].transport._write_buffer))


def wait_until_stuck(left: Callable[[], int]) -> None:
    """Until some of it is written, and nothing more is."""
    before, deadline = 0, time.monotonic() + 60
    while (now := left()) != before or not 0 < now < WRITTEN_NEVER * 240:
        assert time.monotonic() < deadline, f"{now} bytes are left to write"
        before = now
        time.sleep(0.05)


def test_a_connection_that_is_lost_right_before_its_tls_handshake_leaves_no_socket_open() -> None:
    """A server that has ended, or a load balancer with none behind it."""
    with (
        left_open() as texts,
        closing(Loop()) as loop,
        _reset_connection() as connection,
        pytest.raises(OSError, match="not connected"),
    ):
        dial._transport(loop, connection, "127.0.0.1", ssl.create_default_context())
    assert not texts


def _reset_connection() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
    waiting = select.poll()
    waiting.register(connection, select.POLLERR)
    assert waiting.poll(60_000)
    return connection


FORKED = """
import os, signal, sys
from onceflow.kafka.client import KafkaClient
def is_refused(ask):
    try:
        ask()
    except RuntimeError as error:
        return "forked" in str(error)
    return False
with KafkaClient({"bootstrap_servers": [sys.argv[1]]}, patience_s=60) as client:
    child = os.fork()
    if not child:
        signal.alarm(60)
        refused = is_refused(client.transaction_version) and is_refused(lambda: client.send(1, None, print))
        client.close()
        os._exit(3 if refused else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert client.transaction_version() == 2
"""


def test_a_forked_process_is_told_that_it_has_no_client_and_leaves_its_parent_s_alone(broker: EmbeddedBroker) -> None:
    """The thread that talks to the cluster is not in it; the connections are, and belong to the other one."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, broker.bootstrap_servers]
    subprocess.run(command, check=True, timeout=120)


def _metadata_of(topics: int) -> MetadataRequest:
    topic = MetadataRequest.MetadataRequestTopic
    names = [topic(name=f"{number:0240}") for number in range(topics)]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False, max_version=9, min_version=4)


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_for_again(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made a moment ago; whoever answers first does not know it."""
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    with KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60) as client:
        look = client._load_topics

        def late(names: list[str]) -> list[str]:
            absent = look(names)
            if absent:
                admin.create_topics(absent, partitions=3)
            return absent

        monkeypatch.setattr(client, "_load_topics", late)
        assert client.topics(["heard-of-late"])["heard-of-late"].partition_count == 3


def test_all_questions_together_have_one_deadline(broker: EmbeddedBroker) -> None:
    """The broker freezes, and one request alone could wait for ten minutes: nothing is waited for, or sent, after that."""
    with Wire() as wire:
        options = {
            "bootstrap_servers": [broker.bootstrap_servers],
            "proxy_url": wire.url,
            "request_timeout_ms": 600_000,
        }
        with KafkaClient(options, patience_s=600, within_s=600) as client:
            assert client.transaction_version() == 2
            client._deadline = time.monotonic() + 5
            with wire.rules.during(Rule(Do.HOLD, None, Direction.ANSWER)) as (held,):
                with pytest.raises(BrokerUnreachable, match=r"no broker of .* answered"):
                    client.topics(["anything"])
                assert held.wait_applied()
                with pytest.raises(BrokerUnreachable):
                    client.ask_coordinator(TRANSACTION, "anybody", None)
                assert not wire.seen[apis.FIND_COORDINATOR]


def test_a_login_that_was_taken_ends_what_another_server_has_said(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had just started did not know it yet: told of later, that would be "refused" where nobody answers in time."""
    client = KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60)
    run = client._manager.run

    def refused_beside_it(*arguments: Any) -> Any:
        answer = run(*arguments)
        client._manager._auth_failures["another"] = SaslAuthenticationFailedError("unknown")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(client._manager, "run", refused_beside_it)
        client.open()
    with client:
        assert not client._manager._auth_failures
        assert client.transaction_version() == 2


def test_servers_that_all_stay_silent_are_named_as_they_were_given(silent: list[str]) -> None:
    client = KafkaClient({"bootstrap_servers": silent}, patience_s=0.5)
    with pytest.raises(BrokerUnreachable, match=f"no broker of {','.join(silent)} answered within 0.5 s") as caught:
        client.open()
    client.close()
    assert "[" not in caught.value.message
    assert caught.value.fields["bootstrap_servers"] == ",".join(silent)
