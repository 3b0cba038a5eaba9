"""Holds the talks of ``asking.py`` and ``producing.py`` with a real cluster, on the caller's thread."""

from __future__ import annotations

import logging
import time
from typing import Any, TypeVar

from onceflow.kafka.client import Again, KafkaClient
from onceflow.transaction.talk import Forget, Leaders, Rest, Talk, ToCoordinator, ToLeader

log = logging.getLogger(__name__)

T = TypeVar("T")


class Performer:
    """Does what talks say. ``key``: the transactional id, or the group, whose coordinators are asked."""

    def __init__(self, client: KafkaClient, key: str) -> None:
        self.client = client
        self.key = key

    def run(self, talk: Talk[T]) -> T:
        """What the talk ends with, or raises."""
        try:
            turn = next(talk)
            while True:
                try:
                    answer = self.perform(turn)
                except Exception as error:  # noqa: BLE001  the talk decides what it means
                    if isinstance(error, Again):
                        log.debug("%s: again after %s", turn, error)
                    turn = talk.throw(error)
                else:
                    turn = talk.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def perform(self, turn: Any) -> Any:
        """One turn; what it is answered with."""
        match turn:
            case ToCoordinator(kind, request):
                return self.client.ask_coordinator(kind, self.key, request)
            case ToLeader(node, request):
                return self.client.ask(node, request)
            case Leaders(topics, refresh):
                return self.client.topics(topics, refresh=refresh)
            case Forget(kind):
                self.client.forget_coordinator(kind, self.key)
            case Rest(pause):
                time.sleep(pause)
            case _:
                raise AssertionError(turn)
        return None
