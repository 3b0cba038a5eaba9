"""What came out of runs under faults: a page for people, JUnit XML and JSON for programs, and the smallest histories."""

from onceflow.verify.report.summary import exit_status
from onceflow.verify.report.terminal import show
from onceflow.verify.report.writing import Report, clear, write_report

__all__ = ["Report", "clear", "exit_status", "show", "write_report"]
