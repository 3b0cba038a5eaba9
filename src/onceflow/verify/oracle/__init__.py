"""The oracle: what the output must be, made of nothing but the input and the places where batches ended.

The plan's views and sinks are built by ``onceflow.pipeline`` (pure DataFrame code); of ``onceflow.transaction`` only the
partitioner is used, and the digest by which a committed batch is known. No transaction, no progress record, no sink and no
fault is in the way of an expectation.
"""

from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.process import expected_output

__all__ = ["Expected", "expected_output"]
