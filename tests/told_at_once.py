"""A failure is told when it happens, and not only in the summary: a run that is ended for its time never comes to one."""

from __future__ import annotations

import pytest


class FailuresAtOnce:
    """In the process that reports, which is not one of those that work."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED at {report.when}: {report.nodeid}", red=True)
            self._reporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)  # the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(reporter))
