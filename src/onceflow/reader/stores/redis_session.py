"""One Redis client: what the server must be, the keys of a group, and the scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onceflow.errors import (
    CommitUnknown,
    ConfigurationError,
    EffectRefused,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from onceflow.reader.stores.interface import Ownership, Retention
from onceflow.reader.stores.redis_scripts import APPLY, FORGET, TAKE
from onceflow.reader.stores.tables import LAYOUT_VERSION, Position, layout_mismatch

_TIMEOUT_S = 30.0
_OLDEST_VERSION = (6, 2)


@contextmanager
def translated() -> Iterator[None]:
    """Raises StoreUnavailable where nothing was sent that writes."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
        raise StoreUnavailable(f"Redis store: {error}", action="check the server; the events come again") from error


def check_url(url: str) -> None:
    """Raises ConfigurationError. It shows nothing of the URL: any part of it may be a password that is not written as one."""
    try:
        parts = urlsplit(url)
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class(**pool.connection_kwargs)  # not connected: it only looks at the names
    except (ValueError, TypeError):
        mistake = "redis-py cannot read it: host, port or an option, or a user or password that is not percent-encoded"
        raise ConfigurationError.of("the store's URL", [mistake]) from None
    mistakes = []
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*/?", parts.path, re.ASCII):
        mistakes.append("behind the host stands the number of the database, and nothing else: redis://host:6379/0")
    if "decode_responses" in pool.connection_kwargs:
        mistakes.append("decode_responses cannot be set: the store reads bytes")
    if mistakes:
        raise ConfigurationError.of("the store's URL", mistakes)


class _Commands:
    """What a server tells of its commands: their flags; of none where it does not.

    From Redis 7 on the second word of some (``XINFO STREAM``) has a name of its own: ``xinfo|stream``.
    """

    def __init__(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """From what redis-py makes of the answer to COMMAND."""
        self._flags = {name: set(each["flags"]) for name, each in told.items()}
        for each in told.values():
            self._flags |= {_text(name): set(map(_text, its)) for name, _, its, *_ in each.get("subcommands", ())}

    def check(self, words: Sequence[bytes]) -> None:
        """Raises ValueError for one that the server does not know, runs in no script, or that only reads."""
        first, *rest = (_text(word).lower() for word in words[:2])
        both = "|".join([first, *rest])
        name = both if both in self._flags else first
        shown = name.replace("|", " ").upper()
        if self._flags and "noscript" in self._flags.get(name, {"noscript"}):
            raise ValueError(f"{shown}: this Redis does not run it in a script, as what a handler does is run in one")
        if "readonly" in self._flags.get(name, ()):
            raise ValueError(
                f"{shown}: it only reads, and runs when its events are booked: read with a client of your own"
            )


def _text(word: bytes | str) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else word


class Session:
    """Connects, refuses a Redis that may drop keys, and runs scripts. It never sends a script a second time by itself."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: redis.Redis | None = None
        self.group = ""
        self.is_durable = False
        self._commands: _Commands | None = None  # once they are asked for

    @property
    def client(self) -> Any:
        """The client; its own types leave open whether answers are awaited."""
        if self._client is None:
            raise StoreError("the Redis store is not open", action="call open(group, retention) first")
        return self._client

    def open(self, group: str) -> None:
        self.close()
        self.group = group
        self._commands = None
        self._client = redis.Redis.from_url(
            self._url, retry=Retry(NoBackoff(), 0), socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        try:
            with translated():
                self._check_server()
                self._check_layout()
                self._apply, self._take, self._forget = (
                    self.client.register_script(script) for script in (APPLY, TAKE, FORGET)
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def key(self, name: str) -> str:
        """A key of the group; the braces make all of them one slot of a cluster."""
        return f"onceflow:{{{self.group}}}:{name}"

    def position(self, topic: str, partition: int) -> str | None:
        """The row of a partition as it stands there."""
        with translated():
            raw = self.client.hget(self.key("positions"), partition_field(topic, partition))
        return raw.decode() if isinstance(raw, bytes) else raw

    def now_ms(self) -> int:
        """The server's clock."""
        with translated():
            seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def take(self, topic: str, partition: int, owner: str) -> Ownership:
        """Raises the epoch in one script; the claims of the one before are void."""
        place = partition_field(topic, partition)
        names = [self.key(name) for name in ("positions", "claims", f"open:{place}")]
        with translated():
            epoch, following = self._take(keys=names, args=[place, owner])
        return Ownership(topic, partition, int(epoch), int(following) if following else None)

    def forget_expired(self, retention: Retention) -> int:
        """Deletes the oldest ids as long as both bounds are exceeded."""
        if retention.seconds is None and retention.count is None:
            return 0
        oldest = "+inf" if retention.seconds is None else round((self.now_ms() / 1000 - retention.seconds) * 1_000_000)
        with translated():
            return int(self._forget(keys=[self.key("ids")], args=[oldest, retention.count or 0]))

    def apply(self, request: bytes, values: Sequence[bytes]) -> tuple[str, str]:
        """Runs the one script that writes; what it says, and a detail."""
        try:
            status, detail = self._apply(keys=[self.key("positions")], args=[self.key(""), request, *values])
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise CommitUnknown(f"Redis did not answer the commit: {error}") from error
        except redis.ResponseError as error:  # no memory, no disk, a replica: refused at the first write, or before
            raise StoreUnavailable(
                f"Redis store: {error}", action="see the server's log; the events come again"
            ) from error
        if status == b"refused":
            raise EffectRefused(
                f"Redis refused commands of a handler: {detail.decode(errors='replace')}",
                action="mend the data by hand: the other commands of the unit were done, and its events count as handled",
            )
        return status.decode(), detail.decode()

    def check_command(self, words: Sequence[bytes]) -> None:
        """Raises ValueError for a command that the server does not know, or runs in no script: EVAL, MULTI, SUBSCRIBE.

        In the script it would be refused when all the others are done, and its events count as handled (EffectRefused). So for
        one that only reads: it has no effect, and when it runs nobody is there any more to look at its answer.
        """
        if self._commands is None:
            self._commands = self._asked_for_commands()
        self._commands.check(words)

    def _asked_for_commands(self) -> _Commands:
        """Of none where the server does not tell: managed ones may refuse COMMAND, and compatible ones tell less than redis-py
        reads.
        """
        try:
            with translated():
                return _Commands(self.client.command())
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, redis.ResponseError):
                raise
        except (AttributeError, LookupError, TypeError, ValueError):
            pass  # an answer that cannot be read
        return _Commands({})

    def _check_server(self) -> None:
        """Refuses a server that is too old, a cluster, or one that may drop keys when its memory is full."""
        server, memory = self.client.info("server"), self.client.info("memory")
        version = str(server["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_VERSION:
            raise StoreMismatch(f"Redis {version} is too old", action="use Redis 6.2 or later")
        if int(self.client.info("cluster").get("cluster_enabled", 0)):
            raise StoreMismatch(
                "this is a node of a Redis Cluster, whose keys move to other nodes and whose failover loses answered writes",
                action="use one Redis, or one with replicas",
            )
        policy = memory["maxmemory_policy"]
        if policy != "noeviction":
            raise StoreMismatch(
                f"this Redis drops keys when its memory is full (maxmemory-policy {policy}): then duplicates would pass",
                action="set maxmemory-policy noeviction, or use another Redis",
            )
        self.is_durable = bool(self.client.info("persistence")["aof_enabled"]) and self._append_fsync() != "no"

    def _append_fsync(self) -> str:
        try:
            return str(self.client.config_get("appendfsync").get("appendfsync", ""))
        except (
            redis.ResponseError
        ):  # managed servers refuse CONFIG; that there is an append-only file is known without it
            return ""

    def _check_layout(self) -> None:
        self.client.set(self.key("layout"), LAYOUT_VERSION, nx=True)
        version = self.client.get(self.key("layout"))
        if version != str(LAYOUT_VERSION).encode():
            raise layout_mismatch(
                f"group {self.group} in Redis", version.decode() if isinstance(version, bytes) else None
            )


def partition_field(topic: str, partition: int) -> str:
    """The name of a partition in keys and fields; the last hyphen separates."""
    return f"{topic}-{partition}"


def position_of(raw: str) -> Position:
    """A row of the positions: epoch, next offset or nothing, owner."""
    epoch, following, _ = raw.split(" ", 2)
    return Position(int(epoch), int(following) if following else None)
