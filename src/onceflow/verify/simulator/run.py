"""One seed, one run, one verdict; and of a failing run the fewest faults that still fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onceflow.verify.simulator import coverage
from onceflow.verify.simulator.anomalies import Anomaly, Shown
from onceflow.verify.simulator.choices import Choices, Key, Point, Taken
from onceflow.verify.simulator.judge import judge
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.world import Variant, World

PRODUCTION = Variant()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. ``taken`` together with the scenario replays it; ``points`` are all its decisions."""

    seed: int
    scenario: Scenario
    anomalies: tuple[Shown, ...]
    reached: frozenset[str]
    taken: dict[Key, int]
    points: Sequence[Point]
    trace: Sequence[str] = field(repr=False, default=())

    @property
    def shown(self) -> frozenset[Anomaly]:
        """The anomalies that came about, by their kinds."""
        return frozenset(each.anomaly for each in self.anomalies)

    def shows(self, anomaly: Anomaly) -> bool:
        """Whether it came about, among others or alone."""
        return anomaly in self.shown

    def story(self) -> str:
        """The failure in words: the scenario, the faults, and the trace."""
        faults = ", ".join(f"{kind} {n}: option {option}" for (kind, n), option in self.taken.items())
        head = f"seed {self.seed}, {self.scenario}\nfaults: {faults or 'none'}\n"
        return head + "".join(f"! {anomaly}\n" for anomaly in self.anomalies) + "\n".join(self.trace)


def run(
    seed: int,
    variant: Variant = PRODUCTION,
    *,
    scenario: Scenario | None = None,
    taken: Taken | None = None,
    tracing: bool = False,
) -> Outcome:
    """Runs a seed; ``scenario`` and ``taken`` replace what the seed says about the frame and the faults."""
    scenario = scenario or Scenario.of(seed)
    choices = Choices(seed, scenario.rates, taken)
    world = World(scenario, choices, variant, tracing=tracing)
    coverage.collect()
    world.run()
    anomalies = tuple(judge(world))
    return Outcome(seed, scenario, anomalies, coverage.collect(), choices.taken, choices.points, world.trace)


def shrink(outcome: Outcome, variant: Variant = PRODUCTION) -> Outcome:
    """The same failure with as few faults as leaving one out after another gives, and with its trace.

    The same is one that shows an anomaly of a kind that it showed before::

        faults a, b and c    a conflict
        a and b              nothing
        c alone              records are lost: another failure, whose trace says nothing of the conflict

    Raises ValueError for one that does not fail again: it was of another variant.
    """
    taken = dict(outcome.taken)
    for left_out in reversed(outcome.taken):
        fewer = {key: option for key, option in taken.items() if key != left_out}
        if outcome.shown & run(outcome.seed, variant, scenario=outcome.scenario, taken=fewer).shown:
            taken = fewer
    smallest = run(outcome.seed, variant, scenario=outcome.scenario, taken=taken, tracing=True)
    if not outcome.shown & smallest.shown:
        raise ValueError(f"seed {outcome.seed} does not fail so under this variant: give the one that it failed under")
    return smallest
