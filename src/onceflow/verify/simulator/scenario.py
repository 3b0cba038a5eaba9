"""What a seed decides before the run begins: the input, the transaction version, and which faults may happen how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from onceflow.transaction.producing import BUFFER_BYTES

_TOGETHER = (
    "request",  # requests and answers: lost, twice, late
    "cut",  # a driver's connection
    "denied",  # an ACL that was taken away, or the broker asks to abort
    "task",  # a writer task fails, or is thought lost and lives on
    "driver",  # killed, stopped, interrupted
    "second",  # another driver starts beside it
    "move",  # a coordinator or a partition's leader moves to another broker
    "expire",  # the transactional id expires, or what leaders know of producers does
    "hijack",  # a stranger initialises the transactional id
    "tail",  # an acknowledged batch is lost
    "marker",  # markers are written late
    "checkpoint",  # Spark's files: lost, torn, late, stale
    "plan",  # where a batch ends: no fault, but two drivers may plan differently
)
KINDS = (
    *_TOGETHER,
    "people",  # what is done to the cluster by hand: committed offsets, settings of the broker and of the topic
    "rest",  # nothing comes for long, and what is committed is renewed: no fault, but it may meet any
    "beside",  # a driver is killed, stopped or interrupted while tasks write
    "pace",  # how long a request takes: no fault, but it decides who of two comes first
    "partly",  # the offsets of one source partition, or of its topic, are refused; those beside them are not
    "replaced",  # the group coordinator is replaced, and does not hear of it for a while
    "outdated",  # the same of the transaction coordinator
    "named",  # ... and is named as the coordinator to who looks for it then
)
"""The kinds of decisions. The first are drawn together; one that is added is drawn by itself, and leaves other seeds alone."""

_RATES = (0.01, 0.03, 0.1)
_ENABLED = 0.35
_NEAR_THE_LAST_EPOCH = 0.08
_BY_DRIVER = 0.4
_RESTARTS = 0.1
_SILENCES = 0.15
_SILENT_BATCH = 0.5
_PEOPLE = 0.06
_USER_RESTARTS = 0.3
_CLAIMS_FIRST = 0.3
_RESTS = 0.15
_PACED = 0.3
_PARTLY = 0.1
_BESIDE = 0.15
_REPLACED = 0.08
_NAMED = 0.7
_PACES = (0.3, 0.8)
_RESTARTED_LEADERS = 0.5
_SEVERAL_RECORDS = 0.2
_READINGS_DIFFER = 0.04
_UNVERIFIED = 0.3
_NEWER = 0.5
_SIZES = (
    *((records, size) for records in (6, 9, 12) for size in (3, 4)),
    (30, 15),
)  # the last fills a partition's window
_BYTES = (1000, 1000, BUFFER_BYTES // 4)  # four of the large ones fill the buffer, one a request


@dataclass(frozen=True, slots=True)
class Scenario:
    """The frame of a run. Faults end at ``faults_until``; then everything has to come to its end."""

    version: int = 2
    records: int = 9
    batch_records: int = 3
    first_epoch: int = 0
    drivers: int = 1
    by_driver: bool = False  # who writes: the driver, or a task for each partition
    restarts: bool = (
        False  # after an error, whatever the machine's state: as an ingest does, and Spark's driver does not
    )
    batch_bytes: int = 1000  # what a record batch counts for against the limits of requests and buffers
    silent: frozenset[int] = frozenset()  # input records that give no output: a filter drops them
    user_restarts: bool = (
        False  # after a conflict, where the checkpoint can be read: what the user chooses instead of to resume
    )
    claims_first: bool = (
        False  # before anything is planned, as `onceflow run` does; else with the first batch, as a sink alone
    )
    at_least_once: int = (
        0  # so many records are written under that already; the user resumes, and forgets where to begin
    )
    resumes: bool = (
        True  # there; else guarantee and checkpoint are changed at once, and nobody says that something goes on
    )
    restarts_leaders: bool = (
        False  # a partition's leader moves to a broker that was restarted, and knows the newest batches alone
    )
    records_each: int = 1  # so many make a record batch
    readings_differ: bool = (
        False  # two readings of the source end each batch at different offsets: what is committed cannot tell both
    )
    verifies: bool = (
        True  # partition leaders ask the coordinator before they append; those of version 1 may be told not to
    )
    follows_next: bool = False  # brokers of Kafka 4.3, and not of 4.2: what follows when the epochs are used up
    faults_until: int = 1500
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Swarm testing: each seed has some kinds of faults, rare or frequent, and none of the others."""
        random = Random(~seed)  # noqa: S311  no secret
        rates = {kind: random.choice(_RATES) for kind in _TOGETHER if random.random() < _ENABLED}
        near = random.random() < _NEAR_THE_LAST_EPOCH
        records, batch_records = random.choice(_SIZES)
        version = random.choice((1, 2))
        return cls(
            version=version,
            records=records,
            batch_records=batch_records,
            first_epoch=random.randrange(32755, 32767) if near else 0,
            drivers=random.choice((1, 1, 2)),
            by_driver=random.random() < _BY_DRIVER,
            batch_bytes=random.choice(_BYTES),
            restarts=random.random() < _RESTARTS,
            silent=_silent(seed, records, batch_records),
            user_restarts=Random(f"the user of {seed}").random() < _USER_RESTARTS,  # noqa: S311  no secret
            claims_first=Random(f"claims first of {seed}").random() < _CLAIMS_FIRST,  # noqa: S311  no secret
            restarts_leaders=Random(f"the leaders of {seed}").random() < _RESTARTED_LEADERS,  # noqa: S311  no secret
            records_each=1 + (Random(f"the batches of {seed}").random() < _SEVERAL_RECORDS),  # noqa: S311  no secret
            readings_differ=Random(f"the readings of {seed}").random() < _READINGS_DIFFER,  # noqa: S311  no secret
            verifies=version == 2 or Random(f"who asks in {seed}").random() >= _UNVERIFIED,  # noqa: S311  no secret
            follows_next=Random(f"the release of {seed}").random() < _NEWER,  # noqa: S311  no secret
            rates={
                **rates,
                **_people(seed),
                **_rest(seed),
                **_pace(seed),
                **_beside(seed),
                **_partly(seed),
                **_replaced(seed),
                **_outdated(seed),
            },
        )


def _silent(seed: int, records: int, batch_records: int) -> frozenset[int]:
    """In some runs whole batches give no output; where a batch ends elsewhere than planned, others give less.

    Drawn from a generator of its own: so seeds without any remain the runs that they were before there were silent records.
    """
    random = Random(f"silent records of {seed}")  # noqa: S311  no secret
    if random.random() >= _SILENCES:
        return frozenset()
    silent = [start for start in range(0, records, batch_records) if random.random() < _SILENT_BATCH]
    return frozenset(record for start in silent for record in range(start, min(start + batch_records, records)))


def _people(seed: int) -> Mapping[str, float]:
    """In some runs somebody works on the cluster; drawn by itself as silent records are."""
    random = Random(f"people of {seed}")  # noqa: S311  no secret
    return {"people": random.choice(_RATES)} if random.random() < _PEOPLE else {}


def _rest(seed: int) -> Mapping[str, float]:
    """In some runs there is nothing to commit for long, now and then."""
    random = Random(f"the rest of {seed}")  # noqa: S311  no secret
    return {"rest": 10 * random.choice(_RATES[:2])} if random.random() < _RESTS else {}


def _pace(seed: int) -> Mapping[str, float]:
    """In some runs requests take one time or another, so that what two drivers do comes in any order, and not in a fixed one."""
    random = Random(f"the pace of {seed}")  # noqa: S311  no secret
    return {"pace": random.choice(_PACES)} if random.random() < _PACED else {}


def _beside(seed: int) -> Mapping[str, float]:
    """In some runs the driver is hit while it waits for tasks."""
    random = Random(f"beside the tasks of {seed}")  # noqa: S311  no secret
    return {"beside": random.choice(_RATES)} if random.random() < _BESIDE else {}


def _partly(seed: int) -> Mapping[str, float]:
    """In some runs a commit of source offsets is refused in part."""
    random = Random(f"the source of {seed}")  # noqa: S311  no secret
    return {"partly": 3 * random.choice(_RATES)} if random.random() < _PARTLY else {}


def _replaced(seed: int) -> Mapping[str, float]:
    """In some runs a group coordinator is replaced, and answers on for a while whoever is told that it is the coordinator."""
    random = Random(f"who is replaced in {seed}")  # noqa: S311  no secret
    return {"replaced": random.choice(_RATES[1:]), "named": _NAMED} if random.random() < _REPLACED else {}


def _outdated(seed: int) -> Mapping[str, float]:
    """In some runs it is the transaction coordinator."""
    random = Random(f"what is outdated in {seed}")  # noqa: S311  no secret
    return {"outdated": random.choice(_RATES[1:]), "named": _NAMED} if random.random() < _REPLACED else {}
