"""What an engine and its supervisor say to each other: JSON, one object a line, each way.

The engine's standard input brings orders, its standard output gives messages; what is none there is ignored, because Java
and Spark write to it, too. What is meant as one, and cannot be taken as one, is told as ``MALFORMED``. Both sides import this
file, and nothing heavy. The whole conversation::

    engine      {"told": "ready"}                        warm: whatever can be done before it touches the checkpoint is done
    engine      {"told": "cold"}                         warm no more, for it lost something; "ready" follows
    supervisor  {"do": "run", "mode": "refuse"}          or "resume": the checkpoint is lost, begin at the committed offsets
    engine      {"told": "started"}
    engine      {"told": "step", "step": "AUDIT", "batch": 3}       optional, before each step of its commit
    supervisor  {"do": "hold", "step": "COMMIT"}         wait when this step comes up next
    engine      {"told": "held", "step": "COMMIT", "batch": 4}      and waits for "go", if it ever comes
    engine      {"told": "committed", "batch": 4, "written": true}  false: it was committed already, by an earlier process;
                                                         and "records": 12, where it knows how many it wrote
    supervisor  {"do": "stop"}                           end in order, after the running batch
    engine      {"told": "finished"}                     or {"told": "failed", "code": "FENCED", "error": "..."}

An engine that leads drivers of its own (``Engine.leads``) has this conversation, and so has each of its drivers, on a socket of
its own. The engine says "ready", with the ``pid`` of a standby that is warm, "lost", with that of a driver that has ended though
it was not asked to, and why (``error``), and a last word; a driver that it has set to work
says "started" before anything else, waits until it is told to run, and says all that it does. The engine is told to run and to
stop, a driver to hold and to go.

A failure that is ``lasting`` (true in the message) is one that another start could only meet again. When its standard
input ends the engine kills its process group, itself included: nobody watches it any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Told(StrEnum):
    """What an engine tells."""

    READY = "ready"
    COLD = "cold"
    LOST = "lost"
    STARTED = "started"
    STEP = "step"
    HELD = "held"
    COMMITTED = "committed"
    FAILED = "failed"
    FINISHED = "finished"
    MALFORMED = "malformed"  # by nobody: it stands for a line that was meant as a message


class Do(StrEnum):
    """What an engine is ordered to do."""

    RUN = "run"
    HOLD = "hold"
    GO = "go"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an engine; ``at`` in seconds since the epoch."""

    told: Told
    step: str = ""
    batch: int = -1
    written: bool = True
    records: int | None = None  # that a batch which is committed has written; None where the engine does not say
    code: str = ""
    error: str = ""
    lasting: bool = False  # of a failure: every start would meet it, for the plan or the machine is at fault
    pid: int = 0  # of a driver that an engine leads: of a standby that is warm, or of one that is lost
    at: float = field(default_factory=time.time)

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Message | None:
        """None for what is no message; ``MALFORMED``, with what is wrong, for an object that says ``told`` and is none.

        ::

            engine   {"told": "committed", "batch": "4"}
            who waits for a batch counts none; whoever took "4" for a number would fail where nobody looks
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or "told" not in fields:
            return None
        wrong = "; ".join(_mistakes(fields))
        if wrong:
            return cls(Told.MALFORMED, error=f"{wrong}, in {line.strip()[:_MOST_SHOWN]}")
        return cls(**{**fields, "told": Told(fields["told"])})


_MOST_SHOWN = 200
_SAID = frozenset(Told) - {Told.MALFORMED}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "told": (str,),
    "step": (str,),
    "batch": (int,),
    "written": (bool,),
    "records": (int, type(None)),
    "code": (str,),
    "error": (str,),
    "lasting": (bool,),
    "pid": (int,),
    "at": (int, float),
}


def _mistakes(fields: Mapping[str, object]) -> Iterator[str]:
    """Types are compared as they are: true is no number."""
    for name, value in fields.items():
        if name not in _TYPES:
            yield f"there is no field {name!r}"
        elif type(value) not in _TYPES[name]:
            yield f"{name} is {json.dumps(value)}"
        elif name == "told" and value not in _SAID:
            yield f"nothing is told as {value!r}"


@dataclass(frozen=True, slots=True)
class Order:
    """One order to an engine."""

    do: Do
    mode: str = "refuse"
    step: str = ""

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Order:
        """Raises ValueError, TypeError or KeyError for what is no order."""
        fields = json.loads(line)
        return cls(**{**fields, "do": Do(fields["do"])})
