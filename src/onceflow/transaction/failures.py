"""How a writer tells the coordinator why its attempt ended; internal, users never see these."""

from __future__ import annotations


class IdentityRefused(Exception):
    """The broker refused our (producer id, epoch) or its transaction."""


class AttemptFailed(Exception):
    """This attempt is lost (a task was retried, a sequence broke); another may work."""
