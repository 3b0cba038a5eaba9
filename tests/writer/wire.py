"""A broker whose clients talk to it through a wire, which can lose the answer to a chosen request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.broker import EmbeddedBroker
from onceflow.broker.home import BrokerState
from onceflow.broker.settings import HOST, Place, free_ports, server_properties
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, Wire


@dataclass(frozen=True, slots=True)
class Loss:
    """Loses the answers to ``api`` from ``first`` to ``first + count - 1``; ``then`` is called before the connection breaks."""

    api: int
    first: int = 0
    count: int = 1
    then: Callable[[], object] = field(default=lambda: None)


NOTHING = Loss(api=-1)


class WireProxy(Wire):
    """The wire; clients take it for the broker."""

    _loss: ActiveRule | None = None

    def lose(self, loss: Loss) -> None:
        """From now on."""
        rule = Rule(Do.CUT, frozenset({loss.api}), Direction.ANSWER, first=loss.first, count=loss.count, then=loss.then)
        self.rules.clear()
        self._loss = self.rules.add(rule)

    @property
    def lost(self) -> int:
        """How many answers, since ``lose`` was called last."""
        return self._loss.applied if self._loss else 0


class ProxiedBroker(EmbeddedBroker):
    """Advertises the proxy on a listener of its own; ``servers`` are its clients' bootstrap servers."""

    def __init__(self, directory: Path, proxy: WireProxy) -> None:
        super().__init__(directory, heap_mb=256)
        self.proxy = proxy
        self._behind = (free_ports(1)[0], proxy.port)
        proxy.target = (HOST, self._behind[0])
        self.servers = proxy.address

    def _write_settings(self, state: BrokerState) -> Mapping[str, str]:
        place = Place(state.port, state.controller_port, behind=self._behind)
        return self._process.write_settings(server_properties(self._home.data, place, self._config))
