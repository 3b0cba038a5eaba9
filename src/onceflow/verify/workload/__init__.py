"""The input of a run: values for any plan, or the built-in one, written in transactions of which some are aborted."""

from onceflow.verify.workload.builtin import builtin_plan
from onceflow.verify.workload.inputs import Inputs, Record, columns_of, inputs_for
from onceflow.verify.workload.samples import read_sample
from onceflow.verify.workload.writer import LEAST_RATE, InputWriter

__all__ = ["LEAST_RATE", "InputWriter", "Inputs", "Record", "builtin_plan", "columns_of", "inputs_for", "read_sample"]
