"""A pipeline's plan: ``pipeline.toml`` and the environment, checked before any I/O."""

from onceflow.config.loading import PlanFile, load
from onceflow.config.model import KafkaCluster, Output, Plan, Sink, Source, Transform, Trigger, Watermark
from onceflow.config.show import show
from onceflow.config.values import Duration

__all__ = [
    "Duration",
    "KafkaCluster",
    "Output",
    "Plan",
    "PlanFile",
    "Sink",
    "Source",
    "Transform",
    "Trigger",
    "Watermark",
    "load",
    "show",
]
