"""What a seed decides before the run begins: the input, the transaction version, and which faults may happen how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

KINDS = (
    "request",  # requests and answers: lost, twice, late
    "cut",  # a driver's connection
    "denied",  # an ACL that was taken away, or the broker asks to abort
    "task",  # a writer task fails, or is thought lost and lives on
    "driver",  # killed, stopped, interrupted
    "second",  # another driver starts beside it
    "move",  # a coordinator moves to another broker
    "expire",  # the transactional id expires
    "hijack",  # a stranger initialises the transactional id
    "tail",  # an acknowledged batch is lost
    "marker",  # markers are written late
    "checkpoint",  # Spark's files: lost, torn, late, stale
    "plan",  # where a batch ends: no fault, but two drivers may plan differently
)
"""The kinds of decisions."""

_RATES = (0.01, 0.03, 0.1)
_ENABLED = 0.35
_NEAR_THE_LAST_EPOCH = 0.08


@dataclass(frozen=True, slots=True)
class Scenario:
    """The frame of a run. Faults end at ``faults_until``; then everything has to come to its end."""

    version: int = 2
    records: int = 9
    batch_records: int = 3
    first_epoch: int = 0
    drivers: int = 1
    faults_until: int = 1500
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Swarm testing: each seed has some kinds of faults, rare or frequent, and none of the others."""
        random = Random(~seed)  # noqa: S311  no secret
        rates = {kind: random.choice(_RATES) for kind in KINDS if random.random() < _ENABLED}
        near = random.random() < _NEAR_THE_LAST_EPOCH
        return cls(
            version=random.choice((1, 2)),
            records=random.choice((6, 9, 12)),
            batch_records=random.choice((3, 4)),
            first_epoch=random.randrange(32755, 32767) if near else 0,
            drivers=random.choice((1, 1, 2)),
            rates=rates,
        )
