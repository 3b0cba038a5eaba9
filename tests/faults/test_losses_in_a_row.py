"""One loss after the other, with no recovery in between (F24): what each of them takes adds up.

::

    driver       has committed batches 0 to 3
    checkpoint   loses its entry of batch 3; the driver that starts is killed before it knows
    checkpoint   loses that of batch 2, then of batch 1, in the same way
    driver       is offered batch 1, and must know that it is committed, although it is three batches old
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.light import LightDriver
from tests.faults.support import Cluster, Job, LightDrivers, expected_records

from onceflow.transaction import progress, protocol
from onceflow.transaction.progress import OnMismatch, decide

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

KILL = int(signal.SIGKILL)
BATCHES = 4
SHORT_MEMORY = 2  # batches: enough for who looks at one loss at a time


def after_losses(cluster: Cluster, light: LightDrivers, losses: int) -> str:
    """A topic with the output of a driver that went on after so many losses in a row, to one batch more."""
    job = light.job(cluster, cluster.make_topic(1), batches=BATCHES)
    LightDriver(job).run()
    for _ in range(losses):
        lose_an_entry(job)
        assert light.run(replace(job, interrupt=("FENCE", -1, KILL))).signal == KILL
    LightDriver(replace(job, batches=BATCHES + 1)).run()
    return job.topic


def lose_an_entry(job: Job) -> None:
    """Of the checkpoint: the newest batch that it knows to be done."""
    checkpoint = Path(job.checkpoint)
    checkpoint.write_text(str(int(checkpoint.read_text()) - 1))


def test_three_losses_in_a_row_repeat_nothing(cluster: Cluster, light: LightDrivers) -> None:
    cluster.check_exactly(after_losses(cluster, light, 3), expected_records(BATCHES + 1))


@pytest.mark.parametrize(("losses", "repeated"), [(1, 0), (3, 3)])
def test_control_who_remembers_two_batches_survives_one_loss_and_repeats_at_the_third(
    v2: Cluster, light: LightDrivers, monkeypatch: pytest.MonkeyPatch, losses: int, repeated: int
) -> None:
    """And takes what it does not remember for new."""
    monkeypatch.setattr(progress, "DIGESTS_KEPT", SHORT_MEMORY)
    monkeypatch.setattr(protocol, "decide", lambda known, batch, _: decide(known, batch, OnMismatch.RESTART))
    topic = after_losses(v2, light, losses)
    again = expected_records(BATCHES)[-len(expected_records(1)) * repeated :] if repeated else []
    written = sorted((key or "", value or "") for _, key, value in v2.read(topic))
    assert written == sorted(expected_records(BATCHES + 1) + again)
