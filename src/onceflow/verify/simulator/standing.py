"""For the judge: which driver is the newest, and what each was given and told that keeps it from knowing where it stands."""

from __future__ import annotations

from onceflow.kafka.client import GROUP
from onceflow.transaction.messages import Identity
from onceflow.verify.simulator.requests import Answer, Committed, driver_of


class Standing:
    """Of the drivers of one name, by their numbers. It changes nothing that a driver can see.

    ``newest``: who fenced last, and could know that. ``displaced``: who was fenced by an older one that could not know.
    ``shared``: identities that two were given. ``misled``: by kind of coordinator, who was told last what is so no more.
    """

    def __init__(self) -> None:
        self.newest = 0
        self.displaced: set[int] = set()
        self.shared: list[Identity] = []
        self.misled: set[tuple[int, int]] = set()
        self._blind: set[int] = set()  # fence because the coordinator did not know the transactional id
        self._ended: set[int] = set()
        self._given: dict[Identity, int] = {}
        self._given_last = 0
        self._told_last: set[int] = set()  # of an older claim
        self._told_once: set[int] = set()  # ... since they started or have committed
        self._moment = 0
        self._fenced_at: dict[int, int] = {}
        self._committed_at: dict[str, int] = {}  # by what the driver calls itself

    def asks(self, driver: int, *, blind: bool) -> None:
        """Before a driver asks for an identity. ``blind``: for whichever, because it has looked, and the id was not known."""
        (self._blind.add if blind else self._blind.discard)(driver)

    def is_blind(self, driver: int) -> bool:
        """Whether the driver asked for whichever identity, because the id was not known."""
        return driver in self._blind

    def was_given(self, identity: Identity, driver: int) -> None:
        """An InitProducerId is answered."""
        self._given_last = driver
        if self._given.setdefault(identity, driver) != driver:
            self.shared.append(identity)

    def has_fenced(self, driver: int, committed: Committed, *, blind: bool) -> None:
        """Who fences because the id was not known goes by the claim, and is no newer for that::

            driver 1 claims, and driver 2 after it; the id expires
            driver 1 is told that the claim is still its own, by a coordinator that was replaced, or a moment before driver 2's
            it fences, and driver 2 stops; or it goes as far as its next offsets, and stops when it hears of driver 2's claim

        Also behind a driver 2 that has ended, for it may have committed all there is; and where a driver 3 has fenced since, and
        was killed before it claimed. A claim that driver 1 found when it started makes it no older: it goes on from that.
        """
        if not blind:
            self._moment += 1
            self._fenced_at[driver] = self._moment
            self._told_once.discard(driver)
        if not blind or driver == self.newest or not self._is_older(driver, committed.claim):
            self.newest = driver
            self.displaced.discard(driver)
        elif self.newest not in self._ended:
            self.displaced.add(self.newest)

    def _is_older(self, driver: int, claim: str) -> bool:
        if self.newest not in self._ended:
            return True
        return driver_of(claim) != driver and self._committed_at.get(claim, 0) > self._fenced_at.get(driver, 0)

    def has_committed(self, claim: str) -> None:
        """A claim, or a batch under it; so whose it is has its place, whatever it was told before."""
        self._moment += 1
        self._committed_at[claim] = self._moment
        self._told_once.discard(driver_of(claim))

    def has_ended(self, driver: int) -> None:
        """Its process is gone."""
        self._ended.add(driver)

    def was_told(self, kind: int, driver: int, answer: Answer) -> None:
        """A coordinator has told a driver what is decided, or was so once."""
        (self.misled.add if answer.misleads else self.misled.discard)((kind, driver))
        if kind == GROUP:
            (self._told_last.add if answer.tells_older_claim else self._told_last.discard)(driver)
        if answer.tells_older_claim:
            self._told_once.add(driver)

    def was_told_of_an_older_claim(self, driver: int, *, proves_nothing: bool) -> bool:
        """Last; or once, where the identity that it was given since ``proves_nothing`` about claims that came between."""
        unproved = proves_nothing and driver == self._given_last
        return driver in self._told_last or (unproved and driver in self._told_once)
