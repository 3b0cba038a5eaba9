"""``junit.xml``: each run a suite, each of its checks a test case; and a suite of the goals.

A violation is a failure. A run that proves nothing is one error that says why, its checks are then skipped: that nothing was
found in it means nothing. A control cannot fail; what it showed stands in its test cases' output. What is found and not judged is
skipped. A goal that was missed is skipped, with the time that was measured, and a failure if the run is held to the goals. Where
nothing is proved and no run says so, for all are controls, an error of its own does: no file without failure and error stands
beside an exit status other than 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from onceflow.verify.checker.registry import Check
from onceflow.verify.report.evidence import examples
from onceflow.verify.report.goals import are_binding, goals
from onceflow.verify.report.meetings import told
from onceflow.verify.report.summary import HEADLINES, ExitStatus, exit_status, proved, reasons, sentence
from onceflow.verify.report.text import cut, writable
from onceflow.verify.result import RunResult


def as_junit(results: Sequence[RunResult], title: str, not_run: Sequence[str] = ()) -> bytes:
    """The report as JUnit XML, in UTF-8. ``not_run`` are the names of runs that are still to come."""
    suites = [_run(number, result) for number, result in enumerate(results, 1)]
    suites += [_not_run(name) for name in not_run]
    suites.append(_goals(results))
    if _needs_an_error(results, suites):
        suites.append(_unproved(results))
    root = ET.Element("testsuites", name=writable(title))
    root.extend(suites)
    for suite in suites:
        _count(suite, [suite])
    _count(root, suites)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _needs_an_error(results: Sequence[RunResult], suites: list[ET.Element]) -> bool:
    """Whether nothing is proved, and no suite says so: with controls alone, say."""
    told_already = any(suite.find("testcase/error") is not None for suite in suites)
    return exit_status(results) is ExitStatus.NOT_JUDGED and not told_already


def _not_run(name: str) -> ET.Element:
    suite = _suite(name)
    case = ET.SubElement(suite, "testcase", classname="onceflow.verify", name=f"{name} is run", time="0")
    _say(case, "error", "not run")
    return suite


def _unproved(results: Sequence[RunResult]) -> ET.Element:
    suite = _suite("verdict")
    case = ET.SubElement(suite, "testcase", classname="onceflow.verify.verdict", name="something is proved", time="0")
    _say(case, "error", f"{HEADLINES[ExitStatus.NOT_JUDGED]}: {sentence(results)}")
    return suite


def _run(number: int, result: RunResult) -> ET.Element:
    suite = _suite(f"run {number}: {result.engine}, {result.pipeline}, seed {result.seed}")
    suite.set("time", f"{result.seconds:.3f}")
    suite.set("timestamp", datetime.fromtimestamp(result.began_at, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    _properties(suite, {"seed": result.seed, "faults": ",".join(result.faults), "command": result.command})
    whole = _case(suite, result, "the run can be judged")
    broken = reasons(result)
    if broken:
        _say(whole, "error" if result.judged else "skipped", broken[0], "\n".join(broken))
    if result.verdict.not_judged:
        parts = "\n".join(f"not judged: {part}" for part in result.verdict.not_judged)
        ET.SubElement(whole, "system-out").text = writable(parts)
    if result.encounters:
        _encounters(_case(suite, result, "the faults met work"), result)
    for check in result.verdict.checks:
        _check(_case(suite, result, check.anomaly), result, check)
    return suite


def _encounters(case: ET.Element, result: RunResult) -> None:
    """Each fault, and what it came upon. That none met work is a reason for which the run proves nothing."""
    lines = [told(result.encounters)]
    lines += [f"{each.at_s:.1f} s {each.fault}: {each.text}" for each in result.encounters]
    if not any(each.met for each in result.encounters):
        _say(case, "skipped", lines[0], "\n".join(lines))
    else:
        ET.SubElement(case, "system-out").text = writable("\n".join(lines))


def _check(case: ET.Element, result: RunResult, check: Check) -> None:
    found = result.verdict.counts[check.anomaly]
    text = f"{found:,} found: {check.meaning}"
    if reasons(result) and check.anomaly not in proved(result):
        _say(case, "skipped", f"the run cannot be judged; {text}")
    elif not found:
        return
    elif not check.judged:
        _say(case, "skipped", f"not judged: {text}", _evidence(result, check.anomaly))
    elif result.judged:
        _say(case, "failure", text, _evidence(result, check.anomaly))
    else:
        ET.SubElement(case, "system-out").text = writable(
            f"control, not judged: {text}\n{_evidence(result, check.anomaly)}"
        )


def _evidence(result: RunResult, anomaly: str) -> str:
    lines = []
    for found in examples(result.verdict):
        if found["anomaly"] == anomaly:
            lines.append(
                f"key {found['key']}, offset {found['offset']}, value {found['value']} {found['detail']}".strip()
            )
            lines += [f"  {cut(row, 1000)}" for row in found["rows"]]
    return "\n".join([*lines, f"again: {result.command}" if result.command else ""]).strip()


def _goals(results: Sequence[RunResult]) -> ET.Element:
    suite = _suite("goals")
    binding = are_binding(results)
    for goal in goals(results):
        case = ET.SubElement(suite, "testcase", classname="onceflow.verify.goals", name=goal.name, time="0")
        if goal.measured_s is None:
            _say(case, "skipped", "not measured")
        elif goal.missed:
            _say(case, "failure" if binding else "skipped", f"missed: {goal.text}")
        else:
            ET.SubElement(case, "system-out").text = goal.text
    return suite


def _suite(name: str) -> ET.Element:
    return ET.Element("testsuite", name=writable(name), tests="0", failures="0", errors="0", skipped="0", time="0")


def _properties(suite: ET.Element, values: dict[str, object]) -> None:
    parent = ET.SubElement(suite, "properties")
    for name, value in values.items():
        ET.SubElement(parent, "property", name=name, value=writable(str(value)))


def _case(suite: ET.Element, result: RunResult, name: str) -> ET.Element:
    # Dots would make packages of what is one name.
    engine, pipeline = (each.replace(".", "_") for each in (result.engine, result.pipeline))
    classname = writable(f"onceflow.verify.{engine}.{pipeline}.seed {result.seed}")
    return ET.SubElement(suite, "testcase", classname=classname, name=writable(name), time="0")


def _say(case: ET.Element, tag: str, message: str, text: str = "") -> None:
    ET.SubElement(case, tag, message=writable(cut(message, 1000))).text = writable(text or message)


def _count(element: ET.Element, suites: list[ET.Element]) -> None:
    for name, path in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
        element.set(name, str(sum(len(suite.findall(f"testcase{path}")) for suite in suites)))
