"""Every fault by its name, and the mixes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Protocol

from onceflow.verify.faults.brokers import BROKER_FAULTS
from onceflow.verify.faults.checkpoint import CHECKPOINT_FAULTS
from onceflow.verify.faults.disk import DISK_FAULTS
from onceflow.verify.faults.driver import DRIVER_FAULTS
from onceflow.verify.faults.expiry import EXPIRY_FAULTS
from onceflow.verify.faults.foreign import AddInputPartition, AddOutputPartition, HijackTransactionalId
from onceflow.verify.faults.isolated import IsolateBroker
from onceflow.verify.faults.late import LATE_FAULTS
from onceflow.verify.faults.limits import LIMIT_FAULTS
from onceflow.verify.faults.network import NETWORK_FAULTS
from onceflow.verify.faults.python_workers import PYTHON_FAULTS
from onceflow.verify.faults.readers import READER_FAULTS
from onceflow.verify.faults.spark import SPARK_FAULTS
from onceflow.verify.faults.standbys import STANDBY_FAULTS

if TYPE_CHECKING:
    from onceflow.verify.running.world import World


class Fault(Protocol):
    """One kind of fault. ``needs`` names what the world must have for it."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def needs(self) -> Collection[str]: ...

    def inject(self, world: World, random: Random) -> None:
        """Returns when the fault has happened and is healed again."""


def _by_name(*faults: Fault) -> dict[str, Fault]:
    return {fault.name: fault for fault in faults}


MIXES: Mapping[str, Mapping[str, Fault]] = {
    "none": {},
    "driver": _by_name(*DRIVER_FAULTS, *STANDBY_FAULTS),
    "brokers": _by_name(*BROKER_FAULTS),
    "network": _by_name(*NETWORK_FAULTS, *LATE_FAULTS, IsolateBroker()),
    "disk": _by_name(*DISK_FAULTS),
    "limits": _by_name(*LIMIT_FAULTS),
    "spark": _by_name(*SPARK_FAULTS, *PYTHON_FAULTS),
    "identity": _by_name(HijackTransactionalId(), *EXPIRY_FAULTS),
    "checkpoint": _by_name(*CHECKPOINT_FAULTS),
    "readers": _by_name(*READER_FAULTS),
    "topics": _by_name(AddInputPartition(), AddOutputPartition()),
}
"""Kinds of faults by the name of their mix; ``all`` is all of them but those of ``topics``, which change what there is to judge:
a key's records move to another partition, and their order with it."""

FAULTS: Mapping[str, Fault] = {name: fault for mix in MIXES.values() for name, fault in mix.items()}

_KILLS_ALL = "kill-all-brokers"
_KILLS_OF_OTHERS = {
    mix: frozenset(name for name in MIXES[mix] if name.startswith("kill-")) for mix in ("brokers", "spark")
}


def kills_of_others(brokers: int) -> frozenset[str]:
    """Those that are a SIGKILL to another process than the driver, without which that has to go on.

    Not those behind which there is no Kafka until it is started again: so all to brokers, where there is one alone.
    """
    return _KILLS_OF_OTHERS["spark"] | (_KILLS_OF_OTHERS["brokers"] - {_KILLS_ALL} if brokers > 1 else frozenset())


ALL = "all"
_NOT_IN_ALL = frozenset(MIXES["topics"])


def chosen(names: Iterable[str]) -> tuple[list[Fault], list[str]]:
    """The faults of names and mixes in the catalog's order, and what is wrong with the names."""
    wanted: set[str] = set()
    mistakes = []
    for name in names:
        if name not in (ALL, *MIXES, *FAULTS):
            mistakes.append(f"--faults {name}: there is no such fault or mix{_hint(name)}")
        wanted |= set(FAULTS) - _NOT_IN_ALL if name == ALL else set(MIXES.get(name, (name,)))
    return [fault for name, fault in FAULTS.items() if name in wanted], mistakes


def all_names() -> str:
    """What ``--faults`` takes, for somebody who has given something else."""
    return f"{ALL}, a mix ({', '.join(MIXES)}) or a fault ({', '.join(FAULTS)})"


_CLOSE = 0.75  # below it, words are taken for one another that only share some letters


def _hint(name: str) -> str:
    """Names that look like it, or that have it as a part; else all of them."""
    known = (ALL, *MIXES, *FAULTS)
    alike = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE) or [each for each in known if name in each]
    return f", did you mean {' or '.join(alike)}?" if alike else f"; it takes {all_names()}"
