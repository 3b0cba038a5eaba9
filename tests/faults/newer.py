"""A newer Kafka than the embedded one: the newest that was tried.

``python -m tests.faults.newer`` makes its lock anew.
"""

from __future__ import annotations

from pathlib import Path

from onceflow.broker.installation import Installation

RELEASE = "4.4.0"
NEWER = Installation(Path(__file__).with_name(f"kafka-{RELEASE}.lock.json"))


def make_lock() -> str:
    """Needs the network."""
    from onceflow.jars_lock import as_lock, broker_artifacts

    return as_lock({"broker": broker_artifacts(RELEASE)})


if __name__ == "__main__":
    NEWER.lock.write_text(make_lock())
