"""A deterministic simulator: the production commit protocol against a model of Kafka's transactions and Spark's checkpoint.

One seed is one run, and gives the same run bit for bit. ``run`` judges it, ``shrink`` keeps of a failing run's faults only
those that it needs, ``explore`` takes every small set of faults instead of random ones. The model of the broker is held
against a real one by ``tests/verify/simulator``.
"""

from onceflow.verify.simulator.explore import explore
from onceflow.verify.simulator.run import Outcome, run, shrink
from onceflow.verify.simulator.scenario import Scenario

__all__ = ["Outcome", "Scenario", "explore", "run", "shrink"]
