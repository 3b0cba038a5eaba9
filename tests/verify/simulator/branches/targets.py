"""Whose branches are counted: what the simulator drives of production."""

from __future__ import annotations

from collections.abc import Mapping

TARGETS: Mapping[str, str] = {
    "src/onceflow/transaction/protocol.py": "",
    "src/onceflow/transaction/progress.py": "",
    "src/onceflow/transaction/coordinator.py": "",
    "src/onceflow/transaction/questions.py": "",
    "src/onceflow/transaction/asking.py": "",
    "src/onceflow/transaction/talk.py": "",
    "src/onceflow/transaction/enrolling.py": "",
    "src/onceflow/transaction/led.py": "",
    "src/onceflow/transaction/lane.py": "",
    "src/onceflow/transaction/producing.py": "",
    "src/onceflow/transaction/going_on.py": "",
    "src/onceflow/transaction/resuming.py": "",
    "src/onceflow/transaction/source_mark.py": "",
    "src/onceflow/kafka/codes.py": "",
    "src/onceflow/kafka/client.py": "KafkaClient.check",
}
"""Source files; where a place is named, of that one alone."""
