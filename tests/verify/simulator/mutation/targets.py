"""What is mutated: the commit protocol, its words, the record of progress, and what becomes of each answer."""

from __future__ import annotations

from tests.verify.simulator.mutation.mutants import Target

TARGETS = (
    Target("src/onceflow/transaction/protocol.py"),
    Target("src/onceflow/transaction/progress.py"),
    Target("src/onceflow/transaction/messages.py"),
    Target("src/onceflow/transaction/coordinator.py"),
    Target("src/onceflow/transaction/questions.py"),
    Target("src/onceflow/transaction/asking.py"),
    Target("src/onceflow/transaction/requests.py"),
    Target("src/onceflow/kafka/codes.py"),
)
