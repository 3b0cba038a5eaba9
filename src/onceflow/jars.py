"""The jars of the embedded broker and of Spark's Kafka connector: locked, fetched once, verified at every use.

``jars.lock.json`` beside this file names every jar of the two sets ``broker`` and ``spark`` with its SHA-256 and its
size. A missing jar is fetched through jgo, so the repositories of the user's ``jgo.conf`` (mirrors included) are used,
and lands in the ordinary Maven cache (``M2_REPO``, or ``~/.m2/repository``). With all jars there, nothing here touches
the network.

Every use hashes every jar: all 92 jars of the broker take 50 ms, so no stamp that could go stale is kept.

``python -m onceflow.jars install`` fetches all jars; ``python -m onceflow.jars lock`` resolves the sets anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from onceflow.errors import SetupError

if TYPE_CHECKING:
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

JarSet = Literal["broker", "spark"]
Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of the whole set."""

LOCK_FILE = Path(__file__).with_name("jars.lock.json")

CONNECTIONS = 16
_ROUNDS = 3
_PAUSE_S = 0.5
_READ_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """One jar of the lock: Maven coordinates, SHA-256 in hexadecimal, size in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def coordinates(self) -> str:
        """``group:artifact:version``."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def relative_path(self) -> Path:
        """Where the jar lies in a Maven repository."""
        return Path(*self.group.split("."), self.artifact, self.version, f"{self.artifact}-{self.version}.jar")


@lru_cache
def locked(jar_set: JarSet, lock: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """The jars of a set as the lock names them."""
    return tuple(Jar(**fields) for fields in json.loads(lock.read_text())[jar_set])


def class_path(jar_set: JarSet, lock: Path = LOCK_FILE) -> list[Path]:
    """The verified jars of a set, those that are missing fetched first. ``lock``: another file of the same form.

    Raises SetupError if a jar cannot be fetched or is not the one of the lock. Runs on the driver.
    """
    install(jar_set, lock=lock)
    return [maven_cache() / jar.relative_path for jar in locked(jar_set, lock)]


def install(jar_set: JarSet, progress: Progress | None = None, lock: Path = LOCK_FILE) -> int:
    """Fetch the jars of a set that are missing, verify all, and give the number fetched.

    A jar of another size than the lock's is half a download and fetched again. Raises SetupError if a jar cannot be
    fetched or its SHA-256 is not the lock's: nothing of that kind is ever put on a class path. Runs on the driver.
    """
    jars = locked(jar_set, lock)
    cache = maven_cache()
    missing = [jar for jar in jars if not _is_there(cache / jar.relative_path, jar)]
    total = sum(jar.size_bytes for jar in jars)
    there = total - sum(jar.size_bytes for jar in missing)

    def on_fetched(jar: Jar) -> None:
        nonlocal there
        there += jar.size_bytes
        if progress:
            progress(there, total)

    if missing:
        _fetch_all(missing, cache, on_fetched)
    return len(missing)


def _is_there(path: Path, jar: Jar) -> bool:
    if not path.is_file() or path.stat().st_size != jar.size_bytes:
        return False
    _verify(path, jar)
    return True


def _verify(path: Path, jar: Jar) -> None:
    found = sha256_of(path)
    if found != jar.sha256:
        raise SetupError(
            f"{jar.coordinates} is not the jar of the lock: SHA-256 {found} instead of {jar.sha256} in {path}",
            action=f"delete {path} and run again; if it comes back, the repository serves a changed jar",
            jar=jar.coordinates,
            path=str(path),
            expected_sha256=jar.sha256,
            found_sha256=found,
        )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_all(jars: list[Jar], cache: Path, on_fetched: Callable[[Jar], None]) -> None:
    # jgo writes a file in place as it arrives; a directory of our own beside the cache keeps half a jar out of it.
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".onceflow-", dir=cache) as staging:
        maven = maven_context(Path(staging))
        failures: dict[Jar, Exception] = {}
        for earlier_rounds in range(_ROUNDS):
            time.sleep(earlier_rounds * _PAUSE_S)
            failures = _fetch_round(list(failures) or jars, maven, cache, on_fetched)
            if not failures:
                return
    raise _fetch_error(failures)


def _fetch_round(
    jars: list[Jar], maven: MavenContext, cache: Path, on_fetched: Callable[[Jar], None]
) -> dict[Jar, Exception]:
    """Fetch in parallel; give what failed in a way that another round may mend."""
    failures: dict[Jar, Exception] = {}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        futures = {pool.submit(_fetch, jar, maven, cache): jar for jar in jars}
        for future in as_completed(futures):
            jar = futures[future]
            try:
                future.result()
            except SetupError:
                pool.shutdown(cancel_futures=True)
                raise
            except (OSError, RuntimeError) as error:
                failures[jar] = error
            else:
                on_fetched(jar)
    return failures


def _fetch(jar: Jar, maven: MavenContext, cache: Path) -> None:
    artifact = maven.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    half = maven.repo_cache / jar.relative_path
    half.unlink(missing_ok=True)
    path = artifact.resolve()
    _verify(path, jar)
    target = cache / jar.relative_path
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)


def _fetch_error(failures: dict[Jar, Exception]) -> SetupError:
    jar, error = next(iter(failures.items()))
    names = ", ".join(_remotes())
    return SetupError(
        f"{len(failures)} jars could not be fetched in {_ROUNDS} rounds from the repositories {names}; "
        f"first {jar.coordinates}: {_without_secrets(str(error))}",
        action="check the network, or name a mirror as central in the [repositories] section of ~/.config/jgo.conf",
        jars=tuple(jar.coordinates for jar in failures),
    )


def _without_secrets(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _settings() -> GlobalSettings:
    # jgo takes 0.3 s to import, which a command that needs no jars must not pay.
    from jgo.config import GlobalSettings

    return GlobalSettings.load()


def maven_cache() -> Path:
    """The Maven cache that jars are fetched to: jgo's setting, ``M2_REPO`` or ``~/.m2/repository``."""
    return Path(_settings().repo_cache)


def _remotes() -> dict[str, str]:
    from jgo.constants import MAVEN_CENTRAL_URL

    return {"central": MAVEN_CENTRAL_URL} | _settings().repositories


def maven_context(cache_directory: Path) -> MavenContext:
    """jgo's access to the repositories of the user's settings, downloading to ``cache_directory``."""
    from jgo.maven import MavenContext

    return MavenContext(repo_cache=cache_directory, remote_repos=_remotes(), timeout=_READ_TIMEOUT_S)


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["install"]:
            return _install_all()
        case ["lock"]:
            from onceflow.jars_lock import make_lock

            LOCK_FILE.write_text(make_lock())
            return 0
        case _:
            print("usage: python -m onceflow.jars install | lock", file=sys.stderr)
            return 2


def _install_all() -> int:
    for jar_set in get_args(JarSet):
        try:
            fetched = install(jar_set, _show)
        except SetupError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{jar_set}: {len(locked(jar_set))} jars verified, {fetched} of them fetched", flush=True)
    return 0


def _show(there: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if there == total else ""
        print(f"\r{there / 1e6:.0f} of {total / 1e6:.0f} MB", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
