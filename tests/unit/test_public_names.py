"""What users may rely on: the public names, and errors that are documented and pickle."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onceflow
from onceflow import errors
from onceflow.errors import ConfigurationError, OnceflowError

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def _tree(kind: type[OnceflowError]) -> list[type[OnceflowError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _tree(child))]


def test_the_public_names_are_these() -> None:
    assert onceflow.__all__ == [
        "AsyncWriter",
        "EmbeddedBroker",
        "KafkaSink",
        "OnceflowError",
        "Reader",
        "Writer",
        "committed_offsets",
        "spark_session",
    ]
    for name in onceflow.__all__:
        assert getattr(onceflow, name).__name__ == name


def test_importing_the_package_loads_neither_spark_nor_a_client() -> None:
    code = "import onceflow, sys; sys.exit(any(m in sys.modules for m in ('pyspark', 'kafka', 'confluent_kafka')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("name", onceflow.__all__)
def test_every_public_name_is_there_for_a_program_to_which_each_warning_is_an_error(name: str) -> None:
    """kafka-python gives one as it is imported, on Python 3.11 and 3.12: the program can do nothing about it."""
    code = f"import onceflow; onceflow.{name}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


def test_what_is_passed_over_in_the_import_of_kafka_python_is_an_error_again_behind_it() -> None:
    code = (
        "import onceflow.kafka_python, importlib.resources; importlib.resources.read_text('onceflow', 'jars.lock.json')"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=False, timeout=120)
    if sys.version_info < (3, 13):
        assert b"DeprecationWarning: read_text is deprecated" in done.stderr


@pytest.mark.parametrize("kind", _tree(OnceflowError)[1:])
def test_every_error_has_a_code_of_its_own_that_is_documented(kind: type[OnceflowError]) -> None:
    assert f"| `{kind.code}` | {kind.__name__}" in DOCUMENTED
    assert [each for each in _tree(OnceflowError) if each.code == kind.code] == [kind]


def test_the_tree_that_the_module_of_errors_shows_is_the_one_there_is() -> None:
    """Each with how deep it stands, whatever the order."""
    shown = re.findall(r"^    ([ │]*)[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted((name, len(indent) // 4 + 1) for indent, name in shown) == sorted(_depths(OnceflowError))


def _depths(kind: type[OnceflowError], depth: int = 1) -> Iterator[tuple[str, int]]:
    """Of all below it that are in the module: tests have errors of their own."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child.__name__, depth
            yield from _depths(child, depth + 1)


@pytest.mark.parametrize("kind", _tree(OnceflowError))
def test_errors_survive_pickling_with_all_they_carry(kind: type[OnceflowError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", action="do this", topic="sales", offset=3)))
    assert type(error) is kind
    assert (error.message, error.action, error.fields) == ("what", "do this", {"topic": "sales", "offset": 3})


def test_a_configuration_error_lists_every_mistake() -> None:
    error = ConfigurationError.of("pipeline.toml", ["first", "second"])
    assert "2 mistakes in pipeline.toml" in str(error)
    assert error.fields["mistakes"] == ("first", "second")
