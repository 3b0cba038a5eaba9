"""Three brokers of either transaction version, which tests share: those of a version are started when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest

from onceflow.verify.cluster import KafkaCluster

BrokersOf = Callable[[int], KafkaCluster]
"""Gives those of a transaction version."""


@contextmanager
def brokers_of(directories: pytest.TempPathFactory, **options: Any) -> Iterator[BrokersOf]:
    """A start takes seconds and three JVMs, so there is none of a version that no selected test needs."""
    with ExitStack() as running:

        @cache
        def started(version: int) -> KafkaCluster:
            directory = directories.mktemp(f"three-brokers-v{version}")
            cluster = KafkaCluster(directory, brokers=3, transaction_version=version, heap_mb=192, **options)
            return running.enter_context(cluster)

        yield started
