"""What faults came upon: a fault that comes between two batches, or whose moment never comes, shows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.engines.transaction import UNKNOWN, Transaction, most
from onceflow.verify.result import Encounter
from onceflow.verify.running.schedule import ROW


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What a driver does at a moment, as far as it has told. No step: nothing that a fault could disturb."""

    step: str = ""
    batch: int = -1  # -1: the step belongs to no batch, but to its start
    is_held: bool = False  # it waits right before the step
    transaction: Transaction = Transaction.NONE

    @property
    def text(self) -> str:
        if not self.step:
            return "no batch was under way"
        what = "its start" if self.batch < 0 else f"batch {self.batch}"
        where = f"{what} right before {self.step}" if self.is_held else f"{what} in {self.step}"
        return f"{where}, {self.transaction.text}"


NOTHING = UnderWay()
_LONGER = "give it longer (--for; where it is a --matrix, more --messages)"


def under_way(engine: Engine, last: Message | None, committed: int) -> UnderWay:
    """``last`` is what a driver told last, ``committed`` the newest batch that it has told to be committed.

    A step of a batch that is committed is no work any more, unless the driver is held there.
    """
    if last is None or last.told not in (Told.STEP, Told.HELD):
        return NOTHING
    is_held = last.told is Told.HELD
    if not is_held and 0 <= last.batch == committed:
        return NOTHING
    around = engine.transactions.get(last.step, UNKNOWN)
    return UnderWay(last.step, last.batch, is_held, around.before if is_held else around.within)


@dataclass(slots=True)
class Said:
    """What a fault itself has to say of it: ``missed`` why its moment did not come, ``met`` what it has certainly hit, ``at``
    what was under way at that moment (None: what the drivers did that it struck), ``lacked`` what of it did not come about,
    though it struck a driver, which counts as ever, ``beside`` what it has struck that does no work.

    ``at_s`` is when it began, ``before`` what was under way then, and ``told`` the steps that had been told by then.
    """

    missed: str = ""
    met: str = ""
    at: UnderWay | None = None
    lacked: str = ""
    beside: str = ""
    at_s: float = 0.0
    before: UnderWay = NOTHING
    told: Counter[str] = field(default_factory=Counter)

    def begin(self, at_s: float, before: UnderWay, told: Counter[str]) -> None:
        """Another fault begins, or this one only now::

        fault    shall strike a coordinator at any moment, so it sleeps; batch 7 begins meanwhile, and is committed
        fault    strikes between two batches: what came while it slept it has not met
        """
        self.missed = self.met = self.lacked = self.beside = ""
        self.at, self.at_s, self.before, self.told = None, at_s, before, Counter(told)


@dataclass(frozen=True, slots=True)
class Coming:
    """All that is known of how a fault came."""

    engine: Engine
    tells_steps: bool  # whether it has told any, before or meanwhile
    said: Said
    before: UnderWay  # when it began
    struck: Sequence[UnderWay]  # each driver that it killed or froze, at that moment
    steps: Counter[str]  # that were told while it lasted
    batches: int  # committed since the last fault was over, until this one was

    def encounter(self, fault: str, at_s: float) -> Encounter:
        """What it met. A signal meets what is under way at its moment, everything else also what comes into it."""
        if self.said.missed:
            return self._of(fault, at_s, NOTHING, met=False, found=f"its moment did not come: {self.said.missed}")
        if self.said.beside:
            found = f"{self.said.beside}, and the driver went on beside it"
            return replace(self._of(fault, at_s, NOTHING, met=False, found=found), beside=True)
        if self.said.met:
            at = self._worst() if self.said.at is None else self.said.at
            return self._of(fault, at_s, at, met=True, found=self.said.met)
        if not self.tells_steps:
            found = "this engine tells no steps; batches were committed since the last fault"
            return self._of(fault, at_s, NOTHING, met=bool(self.batches), found=found if self.batches else NOTHING.text)
        if self.struck:
            return self._striking(fault, at_s)
        return self._lasting(fault, at_s)

    def _striking(self, fault: str, at_s: float) -> Encounter:
        """Each driver that was struck counts, also where another one was to be struck elsewhere::

        the first kill finds batch 7 right before COMMIT; the second one was to come in READ of its successor
        READ does not come, and the successor is killed between two batches: the first kill has met work all the same
        """
        worst = self._worst()
        found = "; then ".join(each.text for each in self.struck)
        if self.said.lacked:
            found = f"{found} ({self.said.lacked})"
        return self._of(fault, at_s, worst, met=bool(worst.step), found=found)

    def _worst(self) -> UnderWay:
        """Of what was struck: the last that was at work, and the most that is known of a transaction."""
        hit = [each for each in self.struck if each.step]
        return replace((hit or [NOTHING])[-1], transaction=most([each.transaction for each in hit]))

    def _lasting(self, fault: str, at_s: float) -> Encounter:
        """A step is told right before it is taken, so what is known of that moment was met, whatever it began with."""
        if not self.steps:
            return self._of(fault, at_s, self.before, met=bool(self.before.step), found=self.before.text)
        moments = [self.engine.transactions.get(step, UNKNOWN).before for step in self.steps]
        came = replace(
            self.before if self.before.step else UnderWay(next(iter(self.steps))),
            transaction=most([self.before.transaction, *moments]),
        )
        first = f"{self.before.text}; then came" if self.before.step else "work came into it:"
        return self._of(fault, at_s, came, met=True, found=f"{first} {', '.join(self.steps)}")

    def _of(self, fault: str, at_s: float, at_work: UnderWay, *, met: bool, found: str) -> Encounter:
        return Encounter(fault, at_s, met, found, at_work.step, at_work.transaction, self.batches)


def lack(encounters: Sequence[Encounter]) -> str:
    """Why a run with these faults proves nothing; empty if it does.

    As many as come in a row by design may be all that a run had: the first of them met a pipeline at work. Those that struck
    beside all work neither prove anything nor spoil it.
    """
    disturbing = [each for each in encounters if not each.beside]
    if not disturbing:
        return _only_beside(encounters) if encounters else ""
    if not any(each.met for each in disturbing):
        return (
            f"no fault met work: {_all_of(len(disturbing))} came between batches, or its moment did not come; {_LONGER}"
        )
    behind_first = encounters[encounters.index(disturbing[0]) + 1 :]
    if len(disturbing) > max(ROW) and not any(each.batches for each in behind_first):
        return f"no batch was committed between the {len(disturbing)} faults; {_LONGER}"
    return ""


def _only_beside(encounters: Sequence[Encounter]) -> str:
    names = ", ".join(dict.fromkeys(each.fault for each in encounters))
    return (
        f"no fault struck what works ({names}): that the driver goes on beside it says nothing of exactly once under faults; "
        f"name one that strikes it as well (--faults {names},kill-driver), or, of a mix, {_LONGER}"
    )


def in_vain(asked: Sequence[str], encounters: Sequence[Encounter]) -> list[str]:
    """Why a run does not show what it was asked for: a fault that is among these names came, more than once, and never met work.

    ::

        --faults kill-driver,pause-python-worker, and the driver writes its small batches by itself
        no Python worker ever has anything to do, and the run would prove what it was to prove
    """
    came, shown = Counter(each.fault for each in encounters), _shown(encounters)
    return [
        f"--faults {name}: it came {came[name]} times, and never met work; {_LONGER}, or give it work"
        for name in dict.fromkeys(asked)
        if came[name] > 1 and name not in shown
    ]


def met_nothing(faults: Sequence[str], encounters: Sequence[Encounter]) -> tuple[str, ...]:
    """Notes of the kinds of which no fault came, or none that met work: green says nothing of them."""
    came, shown = {each.fault for each in encounters}, _shown(encounters)
    if not came:
        return ()
    kinds = {
        "no fault came": [name for name in faults if name not in came],
        "no fault met work": [name for name in faults if name in came - shown],
    }
    return tuple(
        f"{text} of {len(names)} of the {len(faults)} kinds in the mix: {', '.join(names)}"
        for text, names in kinds.items()
        if names
    )


def _shown(encounters: Sequence[Encounter]) -> set[str]:
    """The kinds that did what they are for: met work, or struck beside it, where that is all that they can do."""
    return {each.fault for each in encounters if each.met or each.beside}


def _all_of(number: int) -> str:
    return "the only one" if number == 1 else f"each of the {number}"
