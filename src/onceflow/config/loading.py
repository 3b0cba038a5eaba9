"""From ``pipeline.toml`` and the environment to a frozen plan, or to one error with every mistake and its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from onceflow.config import model
from onceflow.config.environment import NoSuchSetting, expand, overrides, put
from onceflow.config.lines import Lines, Path, find_lines, text_of
from onceflow.config.validation import validated
from onceflow.config.values import flatten
from onceflow.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan and where each of its settings comes from. ``template`` is the plan before ``${...}`` was replaced."""

    plan: model.Plan
    path: FilePath
    lines: Lines
    origins: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> FilePath:
        """Where relative paths of the plan start."""
        return self.path.absolute().parent

    @property
    def checkpoint(self) -> str:
        """The checkpoint's absolute path or URI."""
        chosen = self.plan.checkpoint or f".onceflow/checkpoints/{self.plan.name}"
        return chosen if re.match(r"[a-z][a-z0-9+.-]*:", chosen) else str(self.directory / chosen)

    def origin_of(self, path: Path) -> str:
        """The line or the environment variable that a setting comes from."""
        variable = self.origins.get(text_of(path))
        line = self.lines.of(path)
        return variable or (f"{self.path.name}:{line}" if line else self.path.name)

    def mistake(self, path: Path, text: str) -> str:
        """A mistake as it is shown: where, which setting, what."""
        return f"{self.origin_of(path)}: {text_of(path)}: {text}"

    def ordered(self, mistakes: Iterable[tuple[Path, str]]) -> list[str]:
        """The mistakes as they are shown, in the order of the file's lines."""
        return [self.mistake(*each) for each in sorted(mistakes, key=lambda each: self.lines.of(each[0]) or 0)]

    def error(self, mistakes: list[str]) -> ConfigurationError:
        """One error of all mistakes."""
        return ConfigurationError.of(self.path.name, mistakes)


def load(path: FilePath, environment: Mapping[str, str]) -> PlanFile:
    """The plan in a file, with the environment's overrides. Raises ConfigurationError with every mistake."""
    text = _read(path)
    template = _normalized(_parsed(path, text))
    values, missing = expand(template, environment)
    origins, unknown = _override(template, values, environment)
    plan, found = validated(values, hidden=template)
    unset = [(where, name) for where, name in missing if text_of(where) not in origins]
    mistakes = [(where, f"the environment variable {name} is not set") for where, name in unset]
    mistakes += [(where, text) for where, text in found if where not in dict(unset)]
    file = PlanFile(plan or model.Plan.model_construct(), path, find_lines(text), origins, template)
    if mistakes or unknown:
        raise file.error(file.ordered(mistakes) + unknown)
    return file


def _override(
    template: dict[str, Any], values: dict[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Puts the environment's values in place, as they are. The variable of each setting, and the mistakes."""
    origins, unknown = {}, []
    for variable, value, target in list(overrides(environment, template)):
        if isinstance(target, NoSuchSetting):
            unknown.append(f"{variable}: {target}")
        else:
            put(template, target, value)
            put(values, target, value)
            origins[text_of(target)] = variable
    return origins, unknown


def _read(path: FilePath) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", action="name a plan, or write an example with: onceflow init"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _parsed(path: FilePath, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = re.search(r"\(at line (\d+), column \d+\)", str(error))
        where = f"{path.name}:{position[1]}" if position else path.name
        raise ConfigurationError.of(path.name, [f"{where}: this is not TOML: {error}"]) from error


def _normalized(raw: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as one name each, in the tables whose names hold dots."""
    for table, name in _dotted_tables(raw):
        try:
            table[name] = _with_own(table[name], own=name == "kafka")
        except ValueError:
            continue  # the model says what is wrong with it
    return raw


def _dotted_tables(raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    sources = raw.get("source")
    elements = [s for s in sources if isinstance(s, dict)] if isinstance(sources, list) else []
    return [(raw, name) for name in ("kafka", "spark") if name in raw] + [
        (s, "options") for s in elements if "options" in s
    ]


def _with_own(table: Any, *, own: bool) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ValueError("no table")
    fields = set(model.KafkaCluster.model_fields) - {"options"} if own else set()
    kept = {name: value for name, value in table.items() if name in fields}
    return {**kept, **flatten({name: value for name, value in table.items() if name not in kept})}
