"""What is mutated: the commit protocol, its words, the record of progress, what becomes of each answer, the producer, and where
a resumed query begins.
"""

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
    Target("src/onceflow/transaction/talk.py"),
    Target("src/onceflow/transaction/enrolling.py"),
    Target("src/onceflow/transaction/lane.py"),
    Target("src/onceflow/transaction/producing.py"),
    Target("src/onceflow/transaction/resuming.py"),
    Target("src/onceflow/transaction/source_mark.py"),
    Target("src/onceflow/kafka/codes.py"),
)
