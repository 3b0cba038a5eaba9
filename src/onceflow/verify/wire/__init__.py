"""A proxy before a Kafka broker that understands requests and answers, and treats chosen ones as a bad network would."""

from onceflow.verify.wire import apis
from onceflow.verify.wire.proxy import Wire
from onceflow.verify.wire.rules import ActiveRule, Direction, Do, Rule, Rules

__all__ = ["ActiveRule", "Direction", "Do", "Rule", "Rules", "Wire", "apis"]
