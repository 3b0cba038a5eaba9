"""What came out of runs under faults: a page for people, JUnit XML and JSON for programs, and the smallest histories."""

from onceflow.verify.report.terminal import show
from onceflow.verify.report.writing import Report, write_report

__all__ = ["Report", "show", "write_report"]
