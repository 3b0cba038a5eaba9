"""A partition that is paused because its events wait, and moves meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.reader.conftest import PROTOCOLS, Places
from tests.reader.support import TIMEOUT_S, eventually, insert
from tests.reader.test_beginnings import member_that_never_reads

from onceflow.reader.event import Event
from onceflow.reader.lane import Lane
from onceflow.reader.loop import Loop
from onceflow.reader.steps import Step


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_that_was_paused_when_it_went_is_read_when_it_comes_back(
    places: Places, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """librdkafka keeps the pause through the rebalance; nobody would say a word, and its events would wait for ever."""
    place = places(2)
    place.send(range(20))
    steps: Counter[Step] = Counter()
    paused: set[str] = set()
    mended = threading.Event()
    pause_or_resume = Loop._pause_or_resume

    def noted(loop: Loop, lane: Lane, full: bool) -> None:
        pause_or_resume(loop, lane, full)
        paused.add(lane.name)

    monkeypatch.setattr(Loop, "_pause_or_resume", noted)
    reader = place.reader(
        batch_size=1,
        retries=1_000_000,
        backoff_max_s=0.1,
        on_step=lambda step: steps.update([step]),
        group_protocol=protocol,
    )

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if not mended.is_set():
            raise RuntimeError("not yet")
        insert(tx, event)

    with ThreadPoolExecutor(1) as background:
        running = background.submit(reader.run)
        try:
            eventually(lambda: len(paused), (2).__eq__, "both are paused")
            with member_that_never_reads(place, protocol):
                eventually(lambda: steps[Step.REVOKED], bool, "one goes")
            taken = steps[Step.TAKEN]
            eventually(lambda: steps[Step.TAKEN] > taken or place.members() == 1, bool, "it comes back")
            mended.set()
            eventually(lambda: sorted(map(int, place.effects())), list(range(20)).__eq__, "effects")
        finally:
            reader.stop()
            running.result(TIMEOUT_S)
