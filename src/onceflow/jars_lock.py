"""How the jar lock is made: both jar sets resolved anew, apart from each other, and checked against the broker's own
POM.

Used by ``python -m onceflow.jars lock`` alone; needs the network and an installed PySpark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pyspark
from jgo.maven import Artifact, Dependency, MavenContext
from jgo.parse import Coordinate

from onceflow.errors import SetupError
from onceflow.jars import CONNECTIONS, Jar, maven_cache, maven_context, sha256_of

KAFKA_VERSION = "4.2.2"  # no later one before KAFKA-20734 is mended there: tests/faults/test_without_a_leader.py
SPARK_VERSION = "4.2.0"
LOG4J_VERSION = "2.25.5"
# Later versions are not in every repository; the connector of 4.2 runs with this one, its API has not changed.
PROVIDER_VERSION = "4.0.0"


def make_lock() -> str:
    """Resolve both sets anew and give the text of the lock. Needs the network and an installed PySpark."""
    sets = {"broker": broker_artifacts(), "spark": _spark_artifacts()}
    return as_lock(sets)


def as_lock(sets: Mapping[str, Iterable[Artifact]]) -> str:
    """The text of a lock of these sets."""
    lock = {name: [asdict(jar) for jar in sorted(locked_jars(artifacts))] for name, artifacts in sets.items()}
    return json.dumps(lock, indent=1) + "\n"


def broker_artifacts(release: str = KAFKA_VERSION) -> list[Artifact]:
    """Kafka resolved on its own, then the logging binding.

    Resolved together, the parent of the logging binding would manage Kafka's versions and pick kafka-clients 3.9, with
    which the broker dies. So the binding is resolved apart, adds what is missing, and the broker's own POM has the last
    word.
    """
    maven = maven_context(maven_cache())
    kafka = resolved(maven, f"org.apache.kafka:kafka_2.13:{release}", f"org.apache.kafka:kafka-tools:{release}")
    binding = resolved(maven, f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}")
    known = {artifact.artifactId for artifact in kafka}
    artifacts = kafka + [artifact for artifact in binding if artifact.artifactId not in known]
    _check_against_pom(maven, artifacts, release)
    return artifacts


def _check_against_pom(maven: MavenContext, artifacts: Iterable[Artifact], release: str) -> None:
    chosen = {artifact.artifactId: artifact.version for artifact in artifacts}
    pom = maven.project("org.apache.kafka", "kafka_2.13").at_version(release).pom()
    wanted = {d.artifactId: d.version for d in maven.pom_dependencies(pom) if d.scope in ("compile", "runtime")}
    wrong = [
        f"{name} {chosen.get(name)} instead of {version}"
        for name, version in wanted.items()
        if chosen.get(name) != version
    ]
    if wrong or not wanted:
        raise SetupError(
            "The resolved set is not what the broker's POM asks for: " + ", ".join(wrong), jars=tuple(wrong)
        )


def _spark_artifacts() -> list[Artifact]:
    """The connector and what it needs beyond the jars that PySpark ships itself."""
    maven = maven_context(maven_cache())
    provider = "spark-token-provider-kafka-0-10_2.13"
    excluded = maven.project("org.apache.spark", provider)
    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"
    artifacts = _resolve_dependencies(
        maven,
        [
            maven.create_dependency(_compile(connector), [excluded]),
            maven.create_dependency(_compile(f"org.apache.spark:{provider}:{PROVIDER_VERSION}")),
        ],
    )
    shipped = _pyspark_artifacts()
    return [artifact for artifact in artifacts if artifact.artifactId not in shipped]


def _pyspark_artifacts() -> set[str]:
    jars = Path(pyspark.__file__).parent / "jars"
    return {re.sub(r"-\d[^-]*(-.*)?\.jar$", "", jar.name) for jar in jars.glob("*.jar")}


def resolved(maven: MavenContext, *coordinates: str) -> list[Artifact]:
    """These artifacts and all that they need to compile and to run."""
    return _resolve_dependencies(maven, [maven.create_dependency(_compile(each)) for each in coordinates])


def _compile(coordinates: str) -> Coordinate:
    return replace(Coordinate.parse(coordinates), scope="compile")


def _resolve_dependencies(maven: MavenContext, dependencies: list[Dependency]) -> list[Artifact]:
    direct, transitive = maven.resolver.resolve(dependencies)
    return [each.artifact for each in direct + [t for t in transitive if t.scope in ("compile", "runtime")]]


def locked_jars(artifacts: Iterable[Artifact]) -> list[Jar]:
    """What a lock says of each; those that are not there are fetched."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(_locked_jar, artifacts))


def _locked_jar(artifact: Artifact) -> Jar:
    path = artifact.resolve()
    return Jar(artifact.groupId, artifact.artifactId, artifact.version, sha256_of(path), path.stat().st_size)
