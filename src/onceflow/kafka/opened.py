"""Clients that librdkafka makes. It reads certificate files then, and says of what it cannot take that no client was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

from onceflow.errors import ConfigurationError

T = TypeVar("T")


def opened(make: Callable[[], T], where: str) -> T:
    """The client. Raises ConfigurationError with what librdkafka says; ``where`` names the settings in it."""
    try:
        return make()
    except KafkaException as error:
        raise ConfigurationError.of(where, [error.args[0].str()]) from error
