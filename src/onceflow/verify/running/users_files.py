"""Files of the user's that Spark's settings name, by their whole paths: the processes of a run work in directories of their own.

Spark takes a path without a scheme as one of this machine, from the working directory of the process that starts it::

    [spark] jars = "lib/udf.jar"
    onceflow run       /shop/lib/udf.jar, where the command was given in /shop
    onceflow verify    the same, though engines and oracle run in a directory that was made for them

Not so ``spark.executor.extraClassPath``: that is looked for from where an executor works, in a run as anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_LISTS = {
    "spark.jars": ",",
    "spark.files": ",",
    "spark.archives": ",",
    "spark.submit.pyFiles": ",",
    "spark.driver.extraClassPath": os.pathsep,
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def with_whole_paths(settings: Mapping[str, str]) -> dict[str, str]:
    """Spark settings by their full names, in which files mean the same in any directory as they do here."""
    return {name: _placed(value, _LISTS[name]) if name in _LISTS else value for name, value in settings.items()}


def _placed(files: str, between: str) -> str:
    return between.join(map(_whole, files.split(between)))


def _whole(file: str) -> str:
    """A pattern (``lib/*.jar``) and what stands behind a ``#`` go along."""
    name = file.strip()
    return file if not name or _SCHEME.match(name) else str(Path(name).absolute())
