"""A private Spark standalone cluster: a master and workers as real processes, started from PySpark's own jars.

Drivers connect with ``spark_session(master=cluster.master_url, config=cluster.settings)``. Each driver gets one executor with
one core on each worker; several drivers at a time (a standby, a zombie) have room.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from onceflow.broker.guarded import Guarded
from onceflow.broker.java_tool import FAST_START
from onceflow.broker.settings import HOST, free_ports
from onceflow.errors import SetupError
from onceflow.java import find_java, java_home
from onceflow.kafka.client import Pause
from onceflow.verify.cluster import processes
from onceflow.verify.private import private_environment

_log = logging.getLogger(__name__)

_START_S = 300.0
_COUNTS_S = 30.0  # executors that were just promised are on their way
_SETTLES_S = 10.0  # executors whose numbers are taken start, hear of it, and end
_RECOUNTS = 3
_ANSWERS_S = 15.0  # a master that is asked; one that has just woken has other work
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_PYTHON_WORKER = " pyspark.worker"  # what any daemon is told to run
# In the environment of an executor, by its worker, and of what it starts: it names application, executor and worker.
_WHOSE = "SPARK_LOG_URL_STDERR"
_ALIVE = "ALIVE"  # of a worker, and of a master that is at work
_DRIVER_URL = re.compile(r"--driver-url spark://[^ ]+:(\d+)")
_CORES_OF = re.compile(r"--cores (\d+) --app-id ([^ ]+)")
_CORES = 16  # what a worker says that it has: no driver ever waits for another one's
_MEMORY_MB = 16_384


class SparkProcess:
    """The master or a worker. ``kill``, ``stop``, ``start`` and freezing as with a Kafka ``Node``."""

    def __init__(self, name: str, command: list[str], directory: Path, port: int) -> None:
        self.name = name
        self.port = port
        self._command = command
        self._directory = directory
        self._guarded: Guarded | None = None
        self.is_paused = False

    def __repr__(self) -> str:
        return f"SparkProcess({self.name}, {HOST}:{self.port})"

    @property
    def output(self) -> Path:
        """Where its log is."""
        return self._directory / f"{self.name}.out"

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._guarded.pid if self._guarded and self._guarded.is_running else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def start(self) -> None:
        """Start it, and do not wait: ``SparkCluster.wait_until_healthy`` does."""
        self.end_all()  # of an incarnation that has ended
        self._directory.mkdir(parents=True, exist_ok=True)
        self._guarded = Guarded(self._command, "group", self.output, environment=_environment(self._directory))

    def kill(self) -> None:
        """Kill it (SIGKILL), and not what it has started: a worker's executors notice, and end by themselves."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        self._send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on, if it is frozen."""
        if self.is_paused:
            self._send(signal.SIGCONT)
            self.is_paused = False

    def end_all(self) -> None:
        """Kill it and whatever it has started and still runs."""
        if self._guarded:
            self._guarded.end()
            self._guarded = None

    def _end(self, number: signal.Signals) -> None:
        self._send(number)
        if self._guarded:
            self._guarded.wait()
        self.is_paused = False

    def _send(self, number: signal.Signals) -> None:
        if self.pid is not None:
            processes.send(self.pid, number)


class SparkCluster:
    """A master and ``workers`` workers on 127.0.0.1. A context manager; everything ends with this process, however it ends.

    ``executor_memory_mb`` is each executor's heap. ``silence_s`` is how long the master waits for a worker's word, and a
    driver for an executor's, before they replace it (Spark's own times are one and two minutes). Runs on Linux: it looks into
    ``/proc``.

    The master writes down which applications and workers it knows, so that another one on its port can go on. One that has
    forgotten them ends the pipeline, whose driver registers once::

        master   killed; driver and executors work on, for they talk to each other past it
        master   another one; each worker registers with it, and tells which executors it runs
        master   knows no application of theirs, so it has the worker kill them
        driver   waits for executors without end: whoever is to start them has never heard of it
    """

    def __init__(
        self, directory: str | Path, *, workers: int = 2, executor_memory_mb: int = 512, silence_s: int = 15
    ) -> None:
        self.directory = Path(directory).absolute()
        self.silence_s = silence_s
        self._executor_memory_mb = executor_memory_mb
        port, self._web_port, *ports = free_ports(2 + 2 * workers)
        self.master_url = f"spark://{HOST}:{port}"
        self._memory = self.directory / "recovery"
        at_master = [_MASTER, "--host", HOST, "--port", str(port), "--webui-port", str(self._web_port)]
        self.master = SparkProcess(
            "master", _command(at_master, silence_s, _remembering(self._memory)), self.directory, port
        )
        self.workers = tuple(self._worker(n, ports[2 * n], ports[2 * n + 1]) for n in range(workers))

    def _worker(self, number: int, port: int, web_port: int) -> SparkProcess:
        directory = self.directory / f"worker-{number}"
        options = {
            "--host": HOST,
            "--port": str(port),
            "--webui-port": str(web_port),
            "--cores": str(_CORES),
            "--memory": f"{_MEMORY_MB}m",
            "--work-dir": str(directory),
        }
        arguments = [_WORKER, *(word for option in options.items() for word in option), self.master_url]
        return SparkProcess(f"worker-{number}", _command(arguments, self.silence_s), directory, port)

    @property
    def settings(self) -> Mapping[str, str]:
        """What a driver sets (``spark_session(config=...)``, a plan's ``[spark]``) to run here.

        Executors of one host read each other's shuffle files from its disk, which those of several hosts never do. Not here::

            master     killed; while the next one recovers, a worker registers once more by itself (a race in Spark 4.2)
            worker     kills executor 2, and starts another one, which is executor 2 as well, with directories of its own
            executor 1 knows where executor 2 keeps its files, and looks there for good: each read of a shuffle fails
        """
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": f"{self._executor_memory_mb}m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(len(self.workers)),
            "spark.executor.extraJavaOptions": " ".join(FAST_START),
            "spark.executor.heartbeatInterval": "2s",
            "spark.network.timeout": f"{self.silence_s}s",
            "spark.network.timeoutInterval": "2s",
            "spark.sql.shuffle.partitions": str(len(self.workers)),
            "spark.shuffle.readHostLocalDisk": "false",
        }

    # Life

    def start(self, timeout_s: float = _START_S) -> Self:
        """Start master and workers at the same time and wait until the master knows all of them. Raises SetupError."""
        began = time.monotonic()
        shutil.rmtree(self._memory, ignore_errors=True)  # of another cluster in this directory
        try:
            for each in (self.master, *self.workers):
                each.start()
            self.wait_until_healthy(timeout_s)
        except BaseException:
            self.kill()
            raise
        _log.info("Spark with %d workers started in %.1f s", len(self.workers), time.monotonic() - began)
        return self

    def kill(self) -> None:
        """Kill everything, executors, their Python processes and what is frozen too; when it returns all of that has ended.

        All the rest also when something cannot be killed; that is raised afterwards.
        """
        orphans = [*self.python_workers(), *self.python_daemons(), *self.executors()]
        with ExitStack() as kills:  # from the last one to the first
            for pid in orphans:
                kills.callback(processes.kill, pid)
            for pid in orphans:  # of workers that were killed before
                kills.callback(processes.send, pid, signal.SIGKILL)
            for each in (self.master, *self.workers):
                kills.callback(each.end_all)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def heal(self, patience_s: float = _START_S) -> int:
        """Let what is frozen go on, start what does not run, and wait until the master knows all workers and their executors.

        How often a master that was started for it had to be started once more, for it counted executors that do not run.

        A master that was frozen believes for a moment what was true before::

            master   wakes, and takes all workers for alive
            master   looks at the clock: none was heard for too long, all are dead, and drivers are told that executors are lost
            workers  what they said meanwhile arrives; they are to register again, and to end executors that nobody knows now
        """
        woken_at = time.time() if self.master.is_paused else 0.0
        is_another = not self.master.is_running
        for each in (self.master, *self.workers):
            each.resume()
            if not each.is_running:
                each.start()
        for pid in (*self.executors(), *self.python_daemons(), *self.python_workers()):
            processes.send(pid, signal.SIGCONT)
        self.wait_until_healthy(patience_s, heard_since=woken_at)
        return self._correct_its_count(patience_s) if is_another else 0

    def _correct_its_count(self, patience_s: float) -> int:
        """Start the master again while it counts executors that do not run: their drivers would never get others.

        One that recovers may hear of a worker's executors too late. What follows was read in the source of Spark 4.2; seen were
        drivers with three and four executors of two, and once one with a single one, of which the master counted two::

            master   another one, which has told drivers and workers of itself, and waits for their answers
            worker   tries to register, as it does every few seconds, before it reads that: taken for alive, without its executors
            driver   answers, the last one awaited: the cores that are missing are given out anew, numbered behind those heard of
            worker   tells what it runs: a number that was given again is counted twice, and its end subtracted once
        """
        again = 0
        while miscounted := self._miscounted():
            wrong = f"the Spark master counts more executors of {', '.join(miscounted)} than run"
            if again == _RECOUNTS:
                raise SetupError(wrong, action=f"see {self.master.output}")
            _log.warning("%s: it is started again", wrong)
            self.master.kill()
            self.master.start()
            self.wait_until_healthy(patience_s)
            again += 1
        return again

    def _miscounted(self) -> list[str]:
        """The applications of which the master has given out more cores than their executors have.

        That it counts right must have been so for a while, for it may be right by chance::

            the two old executors run, and two were promised anew
            four run, and four are counted, two of them twice each
            those started anew end, as their numbers are taken, and the old ones with them: none runs, and two are counted
        """
        pause, settled = Pause(_COUNTS_S), Pause(_SETTLES_S)
        while (too_many := self._too_many()) or not settled.expired:
            if too_many:
                settled = Pause(_SETTLES_S)
                if pause.expired:
                    return too_many
            pause.wait()
        return []

    def _too_many(self) -> list[str]:
        taken = self._cores_taken()
        return [app for app, cores in self._cores_given().items() if cores > taken[app]]

    def _cores_given(self) -> dict[str, int]:
        """By the master, to each application."""
        return {each["id"]: each["cores"] for each in self._state().get("activeapps", [])}

    def _cores_taken(self) -> Counter[str]:
        """By executors that run, of each application."""
        taken: Counter[str] = Counter()
        for command in self._executors().values():
            if of := _CORES_OF.search(command):
                taken[of[2]] += int(of[1])
        return taken

    def wait_until_healthy(self, patience_s: float = _START_S, *, heard_since: float = 0.0) -> None:
        """Wait until the master is at work and knows every worker as alive, heard since then (seconds since the epoch).

        Raises SetupError with what it says and the end of its log.
        """
        pause = Pause(patience_s)
        wanted = sorted(worker.port for worker in self.workers)
        while (found := self.alive_workers(heard_since)) != wanted:
            if pause.expired:
                logs = ", ".join(str(each.output) for each in (self.master, *self.workers))
                raise SetupError(f"the Spark master knows the workers {found}, not {wanted}", action=f"see {logs}")
            pause.wait()

    def alive_workers(self, heard_since: float = 0.0) -> list[int]:
        """The ports of the workers that the master takes for alive; none while it is away, or only recovers."""
        state = self._state()
        if state.get("status") != _ALIVE:
            return []
        alive = [each for each in state["workers"] if each["state"] == _ALIVE]
        return sorted(each["port"] for each in alive if each["lastheartbeat"] >= heard_since * 1000)

    def _state(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=_ANSWERS_S) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError, http.client.HTTPException):  # it may die in the middle of its answer
            return {}

    # What workers have started

    def executors(self, driver: int | None = None) -> list[int]:
        """The pids of the executors' JVMs; of all drivers, or of the one whose process group is ``driver``.

        What a JVM starts has the JVM's command line until it has its own, and is no executor.
        """
        found = self._executors()
        if driver is None:
            return list(found)
        ports = processes.listening_ports(driver)
        return [pid for pid, command in found.items() if (of := _DRIVER_URL.search(command)) and int(of[1]) in ports]

    def _executors(self) -> dict[int, str]:
        """The executors of all drivers, and their command lines."""
        ours = [f"spark://Worker@{HOST}:{worker.port}" for worker in self.workers]
        alike = {
            pid: (parent, command)
            for pid, parent, command in processes.running()
            if _EXECUTOR in command and any(url in command for url in ours)
        }
        return {pid: command for pid, (parent, command) in alike.items() if parent not in alike}

    def python_workers(self, driver: int | None = None) -> list[int]:
        """The pids of the Python processes that run tasks for the executors, whatever became of their daemon."""
        executors = self.executors(driver)
        pythons = self._pythons()
        # Nothing but what it inherits tells of an executor whose worker has outlived its daemon.
        theirs = {processes.variable(pid, _WHOSE) for pid in executors} - {None}
        return [
            pid
            for pid, parent in pythons.items()
            if parent not in executors and processes.variable(pid, _WHOSE) in theirs
        ]

    def python_daemon(self, worker: int) -> int | None:
        """The pid of the daemon that a Python worker was forked from; None: it has ended."""
        pythons = self._pythons()
        daemon = pythons.get(worker)
        return daemon if daemon in pythons else None

    def python_daemons(self) -> list[int]:
        """The pids of the daemons of all executors."""
        executors = self.executors()
        return [pid for pid, parent in self._pythons().items() if parent in executors]

    @staticmethod
    def _pythons() -> dict[int, int]:
        """Daemons and workers of all executors, and who their parents are."""
        return {pid: parent for pid, parent, command in processes.running() if _PYTHON_WORKER in command}


def _remembering(directory: Path) -> list[str]:
    return ["-Dspark.deploy.recoveryMode=FILESYSTEM", f"-Dspark.deploy.recoveryDirectory={directory}"]


def _command(arguments: list[str], silence_s: int, more_options: Sequence[str] = ()) -> list[str]:
    options = [
        *FAST_START,
        "-Xmx256m",
        f"-Dspark.worker.timeout={silence_s}",
        "-Dspark.deploy.maxExecutorRetries=50",  # faults in a row must not end an application
        "-Dspark.master.rest.enabled=false",  # it would take a port of its own
        *more_options,
    ]
    return [str(find_java()), *options, "-cp", str(_spark_home() / "jars" / "*"), *arguments]


def _environment(directory: Path) -> dict[str, str]:
    return {
        **private_environment(directory),
        "JAVA_HOME": str(java_home(find_java())),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_SCALA_VERSION": _scala_version(),  # a worker looks for build directories otherwise
        "SPARK_LOCAL_IP": HOST,  # web pages too
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _scala_version() -> str:
    """As the jars are named: ``spark-core_<version>-<Spark's>.jar``."""
    (core,) = (_spark_home() / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]
