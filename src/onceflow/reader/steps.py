"""The moments between which a reader can die: tests stop it at each of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Step(Enum):
    """What has just happened."""

    TAKEN = "taken"  # partitions are assigned, and fenced in the store
    POLLED = "polled"  # events came
    BEGUN = "begun"  # the store knows where the group begins in a partition
    WITNESSED = "witnessed"  # Kafka knows that the group handles events of it
    ADMITTED = "admitted"  # the unit is open, the ids are in it
    CLAIMED = "claimed"
    HANDLED = "handled"  # the handler returned
    BURIED = "buried"  # a dead letter is acknowledged
    COMMITTED = "committed"  # the store has committed or confirmed
    OFFSETS = "offsets"  # Kafka has the offsets
    REVOKED = "revoked"  # partitions are about to go


OnStep = Callable[[Step], None]
