"""The oracle: what the output must be, made of nothing but the input and the places where batches ended.

The plan's views and sinks are built by ``onceflow.pipeline`` (pure DataFrame code); of ``onceflow.transaction`` only the
digest is used by which a committed batch is known. Where a record belongs is told by Kafka's definition (``java_partition.py``),
not by the partitioner of production. No transaction, no progress record, no sink and no fault is in the way of an expectation.
"""

from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.process import expected_output

__all__ = ["Expected", "expected_output"]
