"""An older Kafka, as clusters have it that were not upgraded for long: the last before 4.0, which knows no transaction version.

``python -m tests.faults.older`` makes its lock anew.
"""

from __future__ import annotations

from pathlib import Path

from onceflow.broker.installation import Installation

RELEASE = "3.9.2"
OLDER = Installation(Path(__file__).with_name(f"kafka-{RELEASE}.lock.json"))

_LOG4J_1 = {"reload4j", "slf4j-reload4j"}  # nodes are told where to log in the words of Log4j 2


def make_lock() -> str:
    """Needs the network."""
    from onceflow.jars import maven_cache, maven_context
    from onceflow.jars_lock import LOG4J_VERSION, as_lock, resolved

    maven = maven_context(maven_cache())
    kafka = [a for a in resolved(maven, f"org.apache.kafka:kafka_2.13:{RELEASE}") if a.artifactId not in _LOG4J_1]
    logging = resolved(
        maven, *(f"org.apache.logging.log4j:{name}:{LOG4J_VERSION}" for name in ("log4j-slf4j-impl", "log4j-1.2-api"))
    )
    known = {artifact.artifactId for artifact in kafka}
    return as_lock({"broker": kafka + [artifact for artifact in logging if artifact.artifactId not in known]})


if __name__ == "__main__":
    OLDER.lock.write_text(make_lock())
