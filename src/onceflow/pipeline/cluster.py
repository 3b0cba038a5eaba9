"""The cluster that a plan runs on: the user's own, or the embedded broker beside the plan."""

from __future__ import annotations

from pathlib import Path

from onceflow.broker import EmbeddedBroker
from onceflow.config import PlanFile
from onceflow.errors import BrokerStartError
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.events import BrokerReady, Listener

BROKER_DIRECTORY = Path(".onceflow") / "broker"


def connect(file: PlanFile, tell: Listener) -> ClusterSettings:
    """The settings to reach the plan's cluster; starts the embedded broker if the plan names no other and none runs.

    The embedded broker outlives this process: what was written can be read, and a second pipeline may use it already.
    """
    kafka = file.plan.kafka
    if kafka.bootstrap_servers is not None:
        return ClusterSettings.of(kafka.bootstrap_servers, kafka.options, where=file.path.name)
    broker, started = embedded_broker(file.directory / BROKER_DIRECTORY)
    tell(BrokerReady(broker.bootstrap_servers, str(broker.directory), started))
    return ClusterSettings.of(broker.bootstrap_servers)


def embedded_broker(directory: Path) -> tuple[EmbeddedBroker, bool]:
    """The running broker of a directory, and whether it was started now."""
    broker = EmbeddedBroker(directory, detached=True)
    if not broker.is_running:
        try:
            return broker.start(), True
        except BrokerStartError:
            if not broker.is_running:
                raise
    return EmbeddedBroker.attach(directory), False


def find_settings(file: PlanFile) -> ClusterSettings:
    """As ``connect``, but starts nothing. Raises SetupError if the embedded broker does not run."""
    kafka = file.plan.kafka
    if kafka.bootstrap_servers is not None:
        return ClusterSettings.of(kafka.bootstrap_servers, kafka.options, where=file.path.name)
    return ClusterSettings.of(EmbeddedBroker.attach(file.directory / BROKER_DIRECTORY).bootstrap_servers)
