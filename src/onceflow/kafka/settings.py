"""How to reach a cluster: one set of options in Java's names, given to each of the three client libraries in its own.

Secrets are in the dictionaries that the clients need, and nowhere else: not in ``repr``, ``str``, ``redacted()`` or an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceflow.errors import ConfigurationError
from onceflow.kafka import jaas
from onceflow.kafka.options import KNOWN, LOGIN_MODULES, REFRESH_INTERVAL, REFRESHED_WITHIN_MS, SECRETS
from onceflow.kafka.settings_check import entries_of, mistakes_of

HIDDEN = "********"


@dataclass(frozen=True, slots=True, repr=False)
class ClusterSettings:
    """Bootstrap servers and client options of one cluster, checked. Pickles, secrets included; compares by value."""

    bootstrap_servers: str
    options: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of(
        cls, bootstrap_servers: str, options: Mapping[str, object] | None = None, *, where: str = "the Kafka settings"
    ) -> ClusterSettings:
        """Settings of ``host:port,...`` and options by their Java names, as text or as numbers.

        Also takes ``sasl.username`` and ``sasl.password`` instead of ``sasl.jaas.config``. No I/O. Raises
        ConfigurationError with every mistake; ``where`` names the place in it.
        """
        given = options or {}
        texts = {name: _text_of(value) for name, value in given.items() if value is not None}
        unset = [f"{name}: is None (an environment variable that is not set?)" for name in given if name not in texts]
        mistakes = [*unset, *(text for _, text in mistakes_of(bootstrap_servers, texts))]
        if mistakes:
            raise ConfigurationError.of(where, mistakes)
        return cls(",".join(entries_of(bootstrap_servers)), tuple(sorted(_completed(texts).items())))

    def for_protocol(self) -> dict[str, Any]:
        """Keyword arguments of kafka-python's connection manager, clients and admin. Holds secrets."""
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers.split(",")}
        for name, value in self._with_credentials().items():
            option = KNOWN[name]
            if option.protocol is not None:
                found[option.protocol] = option.convert(value)
        if "ssl_check_hostname" in found:
            found["ssl_check_hostname"] = found["ssl_check_hostname"] == "https"
        return found

    def for_librdkafka(self) -> dict[str, Any]:
        """Configuration of confluent-kafka's clients. Holds secrets.

        librdkafka's producers and admin clients ask about a topic in a way that creates it, where brokers are set to do that
        (auto.create.topics.enable, Kafka's default)::

            a service sends to ordrs, and asks whether there is such a topic: from now on there is, with the default settings
            what was meant for orders is acknowledged, and read by nobody
        """
        found: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers, "allow.auto.create.topics": False}
        for name, value in self._with_credentials().items():
            option = KNOWN[name]
            if option.librdkafka is not None:
                found[option.librdkafka] = option.convert(value)
        if REFRESH_INTERVAL in found:
            found[REFRESH_INTERVAL] = min(found[REFRESH_INTERVAL], REFRESHED_WITHIN_MS)
        if found.get("ssl.endpoint.identification.algorithm") == "":
            found["ssl.endpoint.identification.algorithm"] = "none"
        if "ssl.certificate.location" in found:
            found["ssl.key.location"] = found["ssl.certificate.location"]
        return found

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source and sink, with the prefix ``kafka.``. Holds secrets."""
        found = {"kafka.bootstrap.servers": self.bootstrap_servers}
        options = dict(self.options)
        found.update({f"kafka.{name}": value for name, value in options.items() if KNOWN[name].spark})
        if "sasl.username" in options:
            module = LOGIN_MODULES[options["sasl.mechanism"]]
            found["kafka.sasl.jaas.config"] = jaas.write(module, options["sasl.username"], options["sasl.password"])
        return found

    def redacted(self) -> dict[str, str]:
        """The settings under their Java names, for people: secrets are hidden."""
        shown = {name: HIDDEN if name in SECRETS else value for name, value in self.options}
        return {"bootstrap.servers": self.bootstrap_servers, **shown}

    def unreadable_files(self) -> list[tuple[str, str]]:
        """(option, problem) for every certificate file that this process cannot read. Looks at the file system."""
        found = []
        for name in ("ssl.truststore.location", "ssl.keystore.location"):
            path = dict(self.options).get(name)
            if path is not None:
                found += [(name, f"{path} {problem}") for problem in _problem_with(Path(path))]
        return found

    def _with_credentials(self) -> dict[str, str]:
        """The options with user name and password taken out of the JAAS text, which only Java reads."""
        options = dict(self.options)
        if "sasl.jaas.config" in options:
            login = jaas.parse(options["sasl.jaas.config"])
            options |= {"sasl.username": login.username, "sasl.password": login.password}
        return options

    def __repr__(self) -> str:
        return f"ClusterSettings({self.redacted()})"


def _completed(options: dict[str, str]) -> dict[str, str]:
    """The options with the store types written out: Java would take a store without a type for JKS."""
    stores = [name for name in ("ssl.truststore", "ssl.keystore") if f"{name}.location" in options]
    return {**options, **{f"{store}.type": "PEM" for store in stores}}


def _problem_with(path: Path) -> list[str]:
    try:
        head = path.read_bytes()
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    return [] if b"-----BEGIN " in head else ["holds no PEM block (-----BEGIN ...)"]


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
