"""A driver that ends without a word, and what the next one is answered while it takes the name over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tests.faults.light
from tests.faults.light import Job, LightDriver

from onceflow.kafka.client import KafkaClient
from onceflow.kafka_python import InitProducerIdRequest


class Died(Exception):
    """Nothing was ended in order before it."""


class Dying(LightDriver):
    """Ends right before a step of its first batch, as a kill would end it: what is open stays open."""

    def __init__(self, job: Job, step: str) -> None:
        super().__init__(job)
        self._last = step

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == (self._last, 0):
            raise Died

    def run(self) -> None:
        with pytest.raises(Died):
            super().run()


class Listening(KafkaClient):
    """Tells the code of each answer to an InitProducerId."""

    def __init__(self, hear: Callable[[int], None], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._hear = hear

    def ask_coordinator(self, kind: int, key: str, request: Any) -> Any:
        answer = super().ask_coordinator(kind, key, request)
        if isinstance(request, InitProducerIdRequest):
            self._hear(answer.error_code)
        return answer


def listen(monkeypatch: pytest.MonkeyPatch, hear: Callable[[int], None]) -> None:
    """From here on all that light drivers of this process are answered is heard."""
    monkeypatch.setattr(tests.faults.light, "KafkaClient", partial(Listening, hear))
