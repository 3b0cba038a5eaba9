"""The jar lock and the fetching of jars, from a Maven repository of our own that serves the real jars."""

import gc
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import get_args

import pytest

from onceflow import jars
from onceflow.errors import SetupError

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PROVIDER = "spark-token-provider-kafka-0-10_2.13"


class Repository:
    """A Maven repository over HTTP; ``outages`` of each path answer 503 before it is served."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outages: dict[str, int] = {}
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(timeout=10)
        self._server.server_close()


def _handler(repository: Repository) -> type[SimpleHTTPRequestHandler]:
    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(repository.directory / path.lstrip("/"))

        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[1]
            repository.asked.append(name)
            if repository.outages.get(name, 0) > 0:
                repository.outages[name] -= 1
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="module")
def real_jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository's directory with the jars of the set ``spark``."""
    directory = tmp_path_factory.mktemp("repository")
    for path, jar in zip(jars.class_path("spark"), jars.locked("spark"), strict=True):
        target = directory / jar.relative_path
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    return directory


@pytest.fixture
def repository(real_jars: Path, tmp_path: Path) -> Iterator[Repository]:
    shutil.copytree(real_jars, tmp_path / "repository")
    served = Repository(tmp_path / "repository")
    yield served
    served.close()
    # jgo leaves the connection of a refused download to the collector; it is collected here, under the mark above.
    gc.collect()


@pytest.fixture
def cache(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Maven cache, with ``repository`` as the user's mirror of central."""
    use(repository.address, tmp_path, monkeypatch)
    monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
    return tmp_path / "m2"


def use(address: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = directory / "jgo.conf"
    settings.write_text(f"[repositories]\ncentral = http://{address}\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))


def provider() -> jars.Jar:
    return next(jar for jar in jars.locked("spark") if jar.artifact == PROVIDER)


def test_the_lock_pins_what_the_broker_and_the_connector_need() -> None:
    versions = {name: {jar.artifact: jar.version for jar in jars.locked(name)} for name in get_args(jars.JarSet)}
    assert versions["broker"]["kafka-clients"] == versions["broker"]["kafka_2.13"] == "4.2.2"
    assert versions["broker"]["slf4j-api"].startswith("1.7")
    assert "log4j-slf4j-impl" in versions["broker"]
    assert versions["spark"] == {
        "commons-pool2": "2.13.1",
        "kafka-clients": "3.9.2",
        "spark-sql-kafka-0-10_2.13": "4.2.0",
        PROVIDER: "4.0.0",
    }


def test_the_lock_names_no_host_and_each_jar_once() -> None:
    assert "://" not in jars.LOCK_FILE.read_text()
    for name in get_args(jars.JarSet):
        locked = jars.locked(name)
        assert len({(jar.group, jar.artifact) for jar in locked}) == len(locked)
        assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) and jar.size_bytes > 0 for jar in locked)


def test_missing_jars_come_from_the_users_mirror_and_then_from_the_cache(repository: Repository, cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert jars.install("spark", lambda there, total: seen.append((there, total))) == 4
    assert seen[-1][0] == seen[-1][1] == sum(jar.size_bytes for jar in jars.locked("spark"))
    assert [path.relative_to(cache) for path in jars.class_path("spark")] == [
        j.relative_path for j in jars.locked("spark")
    ]
    assert not list(cache.glob(".onceflow-*"))

    repository.asked.clear()
    assert jars.install("spark") == 0
    assert repository.asked == []


def test_an_outage_is_passed_over(repository: Repository, cache: Path) -> None:
    repository.outages[provider().relative_path.name] = 2
    assert jars.install("spark") == 4
    assert (cache / provider().relative_path).exists()


def test_half_a_jar_is_fetched_again(repository: Repository, cache: Path) -> None:
    jars.install("spark")
    half = cache / provider().relative_path
    half.write_bytes(half.read_bytes()[:1000])
    assert jars.install("spark") == 1
    assert half.stat().st_size == provider().size_bytes


def test_a_changed_jar_in_the_cache_is_refused(repository: Repository, cache: Path) -> None:
    jars.install("spark")
    spoil(cache / provider().relative_path)
    with pytest.raises(SetupError, match=f"{provider().coordinates} is not the jar of the lock") as raised:
        jars.class_path("spark")
    assert raised.value.fields["path"] == str(cache / provider().relative_path)
    assert "delete" in raised.value.action


def test_a_changed_jar_of_the_repository_never_reaches_the_cache(repository: Repository, cache: Path) -> None:
    spoil(repository.directory / provider().relative_path)
    with pytest.raises(SetupError, match=f"{provider().coordinates} is not the jar of the lock"):
        jars.install("spark")
    assert not (cache / provider().relative_path).exists()


def test_the_error_of_a_dead_mirror_names_jars_and_no_secret(
    repository: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(f"user:secret@{repository.address}", tmp_path, monkeypatch)
    shutil.rmtree(repository.directory / provider().relative_path.parent)
    with pytest.raises(
        SetupError, match=f"1 jars could not be fetched in 3 rounds.*{provider().coordinates}"
    ) as raised:
        jars.install("spark")
    assert "secret" not in str(raised.value)
    assert raised.value.fields["jars"] == (provider().coordinates,)


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
