"""When a started broker can be used: it answers, and its group and transaction coordinators have loaded all partitions.

A broker listens some hundred milliseconds before that. Whoever asks then is told COORDINATOR_NOT_AVAILABLE,
NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS; so those questions are asked here, once, instead of in every client's
start.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import kafka.errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeGroupsRequest, DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from onceflow.broker.settings import HOST, NODE_ID

logging.getLogger("kafka").addHandler(logging.NullHandler())

_POLL_S = 0.02
_REQUEST_TIMEOUT_MS = 5_000
# The coordinator was asked for a name that it does not know: it has loaded the partition of that name.
_LOADED = (kafka.errors.NoError, kafka.errors.GroupIdNotFoundError, kafka.errors.TransactionalIdNotFoundError)


def wait_until_ready(port: int, settings: Mapping[str, str], is_alive: Callable[[], bool], timeout_s: float) -> str:
    """Wait until the broker can be used. Gives "" then, or what it still lacked when it died or time was up."""
    deadline = time.monotonic() + timeout_s
    lack = "it does not listen"
    while lack and time.monotonic() < deadline and is_alive():
        if _listens(port):
            lack = _lack_until(deadline, port, settings, is_alive)
        else:
            time.sleep(_POLL_S)
    return lack


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _lack_until(deadline: float, port: int, settings: Mapping[str, str], is_alive: Callable[[], bool]) -> str:
    with _connected(port) as ask:
        lack = _lack(ask, settings)
        while lack and time.monotonic() < deadline and is_alive():
            time.sleep(_POLL_S)
            lack = _lack(ask, settings)
    return lack


@contextmanager
def _connected(port: int) -> Iterator[Callable[[Any], Any]]:
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, bootstrap_servers=f"{HOST}:{port}", client_id="onceflow-broker")

    def ask(request: Any) -> Any:
        if not manager.bootstrapped:
            manager.bootstrap(timeout_ms=_REQUEST_TIMEOUT_MS)
        return manager.run(manager.send, request, NODE_ID, _REQUEST_TIMEOUT_MS)

    try:
        yield ask
    finally:
        manager.close()
        net.close()


def _lack(ask: Callable[[Any], Any], settings: Mapping[str, str]) -> str:
    """What the broker cannot do yet; "" for nothing."""
    groups = _one_name_per_partition(settings["offsets.topic.num.partitions"])
    transactions = _one_name_per_partition(settings["transaction.state.log.num.partitions"])
    try:
        return (
            _lacking("group coordinator", ask(_find(CoordinatorType.GROUP, groups)).coordinators)
            or _lacking("transaction coordinator", ask(_find(CoordinatorType.TRANSACTION, transactions)).coordinators)
            or _lacking("groups", ask(DescribeGroupsRequest(groups=groups)).groups)
            or _lacking(
                "transactions", ask(DescribeTransactionsRequest(transactional_ids=transactions)).transaction_states
            )
        )
    except kafka.errors.KafkaError as error:
        return f"it does not answer ({error})"


def _find(kind: CoordinatorType, names: list[str]) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=names)


def _lacking(what: str, answers: list[Any]) -> str:
    errors = {kafka.errors.for_code(answer.error_code) for answer in answers} - set(_LOADED)
    return f"{what}: {', '.join(sorted(error.__name__ for error in errors))}" if errors else ""


def _one_name_per_partition(count: str) -> list[str]:
    # The partition is the Java hash modulo the count, and the hash of one character is its code.
    return [chr(ord("a") + number) for number in range(int(count))]
