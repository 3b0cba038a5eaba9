"""When started brokers can be used: they answer, and their group and transaction coordinators have loaded all partitions.

A broker listens some hundred milliseconds before that. Whoever asks then is told COORDINATOR_NOT_AVAILABLE,
NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS; so those questions are asked here, once, instead of in every client's
start.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onceflow.broker.settings import HOST
from onceflow.kafka.logins import Connections
from onceflow.kafka.loop import Loop
from onceflow.kafka_python import (
    CoordinatorType,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
)
from onceflow.kafka_python import errors as kafka_errors

logging.getLogger("kafka").addHandler(logging.NullHandler())

_POLL_S = 0.02
_REQUEST_TIMEOUT_MS = 5_000
# The coordinator was asked for a name that it does not know: it has loaded the partition of that name.
_LOADED = (kafka_errors.NoError, kafka_errors.GroupIdNotFoundError, kafka_errors.TransactionalIdNotFoundError)


def wait_until_ready(
    ports: Sequence[int], settings: Mapping[str, str], is_alive: Callable[[], bool], timeout_s: float
) -> str:
    """Wait until the nodes that listen on ``ports`` can be used, all of them.

    Gives "" then, or what they still lacked when one died or time was up.
    """
    deadline = time.monotonic() + timeout_s
    lack = "it does not listen"
    while lack and time.monotonic() < deadline and is_alive():
        if all(_listens(port) for port in ports):
            lack = _lack_until(deadline, ports, settings, is_alive)
        else:
            time.sleep(_POLL_S)
    return lack


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _lack_until(
    deadline: float, ports: Sequence[int], settings: Mapping[str, str], is_alive: Callable[[], bool]
) -> str:
    with _connected(ports) as ask:
        lack = _lack(ask, settings)
        while lack and time.monotonic() < deadline and is_alive():
            time.sleep(_POLL_S)
            lack = _lack(ask, settings)
    return lack


_Ask = Callable[[int | None, Any], Any]


@contextmanager
def _connected(ports: Sequence[int]) -> Iterator[_Ask]:
    loop = Loop()
    servers = [f"{HOST}:{port}" for port in ports]
    manager = Connections(loop, bootstrap_servers=servers, client_id="onceflow-broker")

    def ask(node_id: int | None, request: Any) -> Any:
        if not manager.bootstrapped:
            manager.bootstrap(timeout_ms=_REQUEST_TIMEOUT_MS)
        try:
            return manager.run(manager.send, request, node_id, _REQUEST_TIMEOUT_MS)
        except kafka_errors.KafkaError:
            manager.call_soon(manager.cluster.request_update)  # perhaps it is a node that was not there before
            raise

    try:
        yield ask
    finally:
        manager.close()
        loop.close()


def _lack(ask: _Ask, settings: Mapping[str, str]) -> str:
    """What the nodes cannot do yet; "" for nothing."""
    try:
        return _groups_lack(ask, settings) or _transactions_lack(ask, settings)
    except kafka_errors.KafkaError as error:
        return f"it does not answer ({error})"


def _groups_lack(ask: _Ask, settings: Mapping[str, str]) -> str:
    names = _one_name_per_partition(settings["offsets.topic.num.partitions"])
    found = ask(None, _find(CoordinatorType.GROUP, names)).coordinators
    lack = _lacking("group coordinator", found)
    for node, groups in () if lack else _by_node(found):
        lack = lack or _lacking("groups", ask(node, DescribeGroupsRequest(groups=groups)).groups)
    return lack


def _transactions_lack(ask: _Ask, settings: Mapping[str, str]) -> str:
    names = _one_name_per_partition(settings["transaction.state.log.num.partitions"])
    found = ask(None, _find(CoordinatorType.TRANSACTION, names)).coordinators
    lack = _lacking("transaction coordinator", found)
    for node, ids in () if lack else _by_node(found):
        states = ask(node, DescribeTransactionsRequest(transactional_ids=ids)).transaction_states
        lack = lack or _lacking("transactions", states)
    return lack


def _by_node(coordinators: list[Any]) -> list[tuple[int, list[str]]]:
    """The names that each node coordinates."""
    nodes: dict[int, list[str]] = {}
    for each in coordinators:
        nodes.setdefault(each.node_id, []).append(each.key)
    return list(nodes.items())


def _find(kind: CoordinatorType, names: list[str]) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=names)


def _lacking(what: str, answers: list[Any]) -> str:
    errors = {kafka_errors.for_code(answer.error_code) for answer in answers} - set(_LOADED)
    return f"{what}: {', '.join(sorted(error.__name__ for error in errors))}" if errors else ""


def _one_name_per_partition(count: str) -> list[str]:
    # The partition is the Java hash modulo the count, and the hash of one character is its code.
    return [chr(ord("a") + number) for number in range(int(count))]
