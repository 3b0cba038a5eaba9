"""PostgreSQL and Redis over TLS: the server's certificate is checked where the URL says by what."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.reader.servers import Server
from tests.reader.stores.cutting_proxy import CuttingProxy
from tests.test_security import make_pki

from onceflow.errors import StoreUnavailable
from onceflow.reader.stores import open_store
from onceflow.reader.stores.interface import EventKey, Retention, Standing

KEY = EventKey(0, "shop", "event-0")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    make_pki(directory)
    return directory


@pytest.fixture
def tls(pki: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "broker.crt", pki / "broker.key")
    return context


@pytest.fixture
def redis_port(redis_server: Server, tls: ssl.SSLContext) -> Iterator[int]:
    with CuttingProxy(Path(urlsplit(redis_server.url).path), tls) as proxy:
        yield proxy.port


@pytest.fixture
def postgresql_port(postgresql: Server, tls: ssl.SSLContext) -> Iterator[int]:
    socket = Path(parse_qs(urlsplit(postgresql.url).query)["host"][0]) / ".s.PGSQL.5432"
    with CuttingProxy(socket, tls, asks_first=True) as proxy:
        yield proxy.port


def redis_url(port: int, authority: Path) -> str:
    return f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority}"


def postgresql_url(port: int, authority: Path) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={authority}"


def check(url: str, refused_url: str) -> None:
    group = f"tls-{url.partition(':')[0]}"
    with closing(open_store(url)) as store:
        store.open(group, Retention())
        (owner,) = store.take("orders", [0], "reader")
        with store.unit() as unit:
            assert unit.admit(owner, [KEY]) == [Standing.NEW]
        assert store.take("orders", [0], "reader")[0].next_offset == 1
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        open_store(refused_url).open(group, Retention())


def test_redis(redis_port: int, pki: Path) -> None:
    check(redis_url(redis_port, pki / "ca.crt"), redis_url(redis_port, pki / "other.crt"))


def test_postgresql(postgresql_port: int, pki: Path) -> None:
    check(postgresql_url(postgresql_port, pki / "ca.crt"), postgresql_url(postgresql_port, pki / "other.crt"))
