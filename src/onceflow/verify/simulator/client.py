"""One driver's requests in simulated time: production's talks, held with the model."""

from __future__ import annotations

from onceflow.transaction.asking import Asking
from onceflow.transaction.coordinator import asked
from onceflow.transaction.messages import Effect, Event
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed, Questions
from onceflow.transaction.talk import Talk
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.scheduler import Scheduler
from onceflow.verify.simulator.talking import Simulated, Talker, pace
from onceflow.verify.simulator.wire import offsets_at


class Client:
    """``source`` is the source end offset of the batch under way. What cannot be answered is raised, as production does."""

    def __init__(
        self, scheduler: Scheduler, network: Network, questions: Questions, order: int, *, looks_again: bool
    ) -> None:
        self._asking = Asking(questions, pace(scheduler))
        self._talker = Talker(scheduler, network, order, looks_again=looks_again)
        self.source = 0

    def perform(self, effect: Effect) -> Simulated[Event]:
        """The event that an effect ends with. Writing is not for here."""
        talk: Talk[Event] = asked(self._asking, effect, offsets_at(self.source))
        return self._talker.run(talk)

    def read_committed(self) -> Simulated[Committed]:
        """What is committed."""
        return self._talker.run(self._asking.read_committed(stable=True))

    def forget_group(self) -> Simulated[None]:
        """Who coordinates the group is asked anew."""
        return self._talker.run(self._asking.forget_group())

    def read_claimed(self, claimed: Progress | None) -> Simulated[Committed]:
        """What is committed with the progress that the driver has claimed."""
        return self._talker.run(self._asking.read_claimed(claimed))
