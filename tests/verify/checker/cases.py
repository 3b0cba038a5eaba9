"""For each anomaly the smallest history that shows it, and near misses: histories almost like it that are legal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import (
    Row,
    assign,
    crash,
    effect,
    gone,
    log_end,
    poll,
    position,
    send,
    stable_end,
    subscribe,
    window,
)

Story = Callable[[Recorder], object]


@dataclass(frozen=True)
class Case:
    """What happened, and the anomalies that it must be found to have: exactly these."""

    name: str
    story: Story
    anomalies: tuple[str, ...]

    def table(self) -> pa.Table:
        recorder = Recorder()
        self.story(recorder)
        return recorder.table()


CASES: list[Case] = []


def shows(*anomalies: str) -> Callable[[Story], Story]:
    """Registers a story under its function's name."""

    def register(story: Story) -> Story:
        CASES.append(Case(story.__name__, story, anomalies))
        return story

    return register


# Missing records.


@shows("lost")
def nobody_reads_what_stands_below_the_highest_read(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("reader", assign("k", 0), poll("k", 1, 2))


@shows()
def who_begins_behind_a_record_did_not_ask_for_it(history: Recorder) -> None:
    """A consumer that begins at the end of what is there (``auto.offset.reset=latest``), or that was assigned there."""
    history.add("writer", send("k", 1, 0), send("k", 2, 1), send("k", 3, 2))
    history.add("consumer", subscribe())
    history.add("consumer", poll("k", 1, 2, "g"))
    history.add("reader", assign("k", 2), poll("k", 2, 3), window("k", 2, 3))
    history.add("probe", position("k", 2, "g"))


@shows("lost")
def who_begins_before_a_record_asked_for_it(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), send("k", 3, 2))
    history.add("reader", poll("k", 0, 1))
    history.add("reader", poll("k", 2, 3))


@shows("lost")
def a_window_is_answered_behind_a_record(history: Recorder) -> None:
    """Though the acknowledgement came later: who is given a record was given all that is committed before it."""
    history.add("reader", window("k", 0, 3), poll("k", 0, 1), poll("k", 2, 3))
    history.add("writer", send("k", 1, 0), send("k", 2, 1), send("k", 3, 2))


@shows("stuck_progress")
def a_group_stands_below_a_record_whose_place_is_told_later(history: Recorder) -> None:
    """The ends were asked before the last reading, and the acknowledgements did not tell where."""
    history.add("writer", *[send("k", value) for value in range(3)], txn=1)
    history.add("copier", poll("k", 0, 0, "g"), position("k", 1, "g"), txn=2)
    history.add("probe", log_end("k", 4), stable_end("k", 4), position("k", 1, "g"))
    history.add("reader", *[poll("k", value, value) for value in range(3)])


@shows()
def a_failed_send_may_be_missing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), status="fail")
    history.add("writer", send("k", 2, 1))
    history.add("reader", poll("k", 1, 2))


@shows()
def a_send_of_unknown_outcome_may_be_missing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), status="info")
    history.add("writer", send("k", 2, 1))
    history.add("reader", poll("k", 1, 2))


@shows()
def what_compaction_dropped_is_not_lost(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("broker", gone("k", 0, 1))
    history.add("reader", poll("k", 1, 2))


@shows("lost")
def what_stands_beside_the_dropped_range_is_lost(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), send("k", 3, 2))
    history.add("broker", gone("k", 0, 1))
    history.add("reader", assign("k", 0), poll("k", 2, 3))


@shows()
def what_stood_nobody_knows_where_may_have_been_compacted(history: Recorder) -> None:
    history.add("writer", send("k", 1), send("k", 2, 5))
    history.add("broker", gone("k", 0, 1))
    history.add("reader", window("k", 0, 6), poll("k", 5, 2))


@shows("unseen")
def what_was_dropped_before_it_was_sent_is_another_record(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 0, 1))
    history.add("broker", gone("k", 0, 1))
    history.add("writer", send("k", 2))
    history.add("reader", window("k", 1, 6))
    history.add("probe", log_end("k", 6))


@shows("torn_transaction")
def what_was_dropped_is_no_part_of_a_later_transaction(history: Recorder) -> None:
    """That the writer had done something before says when it began; who was told how far the log reached does not matter."""
    history.add("other", send("k", 1, 0))
    history.add("broker", gone("k", 0, 1))
    history.add("writer", send("j", 9, 0))
    history.add("writer", send("k", 2, 2), send("k", 3), txn=1)
    history.add("reader", window("k", 1, 6), poll("k", 2, 2), poll("j", 0, 9))
    history.add("probe", log_end("k", 6))


@shows()
def what_was_sent_while_others_were_told_of_places_behind_it_may_have_been_dropped(history: Recorder) -> None:
    """The first writer's operation began nobody knows when: it may have stood at 0 before the others saw 1."""
    history.add("other", send("k", 1, 1))
    history.add("reader", poll("k", 1, 1))
    history.add("broker", gone("k", 0, 1))
    history.add("writer", send("k", 2))
    history.add("final", window("k", 0, 6), poll("k", 1, 1))


@shows()
def what_was_sent_may_stand_anywhere_behind_what_was_known(history: Recorder) -> None:
    """On j nothing had been read or acknowledged, on k the range that was dropped reaches further."""
    history.add("writer", send("k", 1, 3))
    history.add("reader", poll("k", 3, 1))
    history.add("broker", gone("k", 0, 5), gone("j", 0, 1))
    history.add("writer", send("k", 2), send("j", 2))
    history.add("reader", window("k", 0, 6), window("j", 0, 6))


@shows()
def what_the_first_of_two_attempts_sent_may_have_been_dropped(history: Recorder) -> None:
    """Either of them committed both records: if the first one did, 3 stood below 4, which others were told of meanwhile."""
    history.add("writer", send("k", 2), send("j", 3), txn=1, status="info")
    history.add("other", send("j", 9, 4))
    history.add("broker", gone("j", 0, 1))
    history.add("writer", crash())
    history.add("writer", send("k", 2), send("j", 3), txn=2, status="info")
    history.add("reader", window("k", 0, 1), poll("k", 0, 2), window("j", 0, 6), poll("j", 4, 9))


@shows()
def a_look_behind_the_lowest_place_of_a_record_is_not_enough(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 0, 1))
    history.add("writer", send("k", 2))
    history.add("reader", window("k", 2, 6))
    history.add("probe", log_end("k", 6))


@shows()
def what_nobody_has_reached_yet_is_not_lost(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("reader", poll("k", 0, 1))


@shows("unseen")
def nobody_reads_the_end_though_a_reader_went_there(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("reader", window("k", 0, 2), poll("k", 0, 1))


@shows("unseen")
def nobody_reads_a_record_whose_offset_is_not_known(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("reader", window("k", 0, 2))
    history.add("probe", log_end("k", 2))


@shows()
def a_record_whose_offset_is_not_known_comes_behind_the_window(history: Recorder) -> None:
    """The reader's operation began before the record was there, and completed after that."""
    history.add("writer", send("k", 1))
    history.add("writer", send("k", 2))
    history.add("reader", window("k", 0, 1), poll("k", 0, 1))


@shows()
def a_record_whose_offset_is_not_known_comes_behind_the_end(history: Recorder) -> None:
    history.add("probe", log_end("k", 1))
    history.add("writer", send("k", 1))
    history.add("writer", send("k", 2))
    history.add("reader", window("k", 0, 1), poll("k", 0, 1))


@shows()
def a_record_whose_offset_is_not_known_comes_behind_an_older_end_and_every_window(history: Recorder) -> None:
    history.add("probe", log_end("k", 0))
    history.add("writer", send("k", 9))
    history.add("reader", assign("k", 0), window("k", 0, 1))


@shows()
def a_group_is_done_before_a_transaction_of_unknown_outcome_is_committed(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="info")
    history.add("consumer", subscribe())
    history.add("probe", position("k", 0, "g"))
    history.add("reader", assign("k", 0), poll("k", 0, 1), window("k", 0, 1))
    history.add("end", log_end("k", 1), stable_end("k", 1))


@shows()
def a_transaction_ends_after_the_ends_were_asked(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="info")
    history.add("probe", log_end("k", 1), stable_end("k", 0))
    history.add("reader", assign("k", 0), poll("k", 0, 1), window("k", 0, 2))


@shows()
def a_position_is_seen_while_the_first_transaction_is_open_that_is_committed_late(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    taken = assign("k", 0), poll("k", 0, 1), position("k", 1, "g"), send("j", 10, 0)
    history.add("copier", *taken, txn=1, status="info")
    history.add("probe", position("k", 0, "g"))
    history.add("probe", position("k", 0, "g"))
    history.add("reader", assign("j", 0), poll("j", 0, 10), window("j", 0, 2))
    history.add("probe", position("k", 1, "g"))


@shows("hung_transaction")
def a_transaction_is_open_of_which_somebody_read_before(history: Recorder) -> None:
    """The last stable offset never goes back: the read was dirty, or the transaction's end is lost."""
    history.add("writer", send("k", 1, 0), txn=1, status="info")
    history.add("reader", assign("k", 0), poll("k", 0, 1), window("k", 0, 1))
    history.add("probe", log_end("other", 0))
    history.add("probe", log_end("k", 1), stable_end("k", 0))


@shows("hung_transaction")
def a_transaction_is_open_though_somebody_asked_for_what_is_behind_it_before(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1, status="fail")
    history.add("reader", assign("k", 0), window("k", 0, 3))
    history.add("probe", log_end("other", 0))
    history.add("probe", log_end("k", 3), stable_end("k", 0))
    history.add("other", window("k", 0, 0))


@shows()
def a_transaction_ends_while_the_ends_are_asked_for(history: Recorder) -> None:
    """The marker is written between the two answers, and the reader is done before the probe."""
    history.add("probe", log_end("k", 0))
    history.add("writer", send("k", 1, 0), txn=1)
    history.add("reader", assign("k", 0), poll("k", 0, 1), window("k", 0, 1))
    history.add("probe", stable_end("k", 0), log_end("k", 2))


@shows()
def a_transaction_that_somebody_had_read_ends_after_the_ends_were_asked(history: Recorder) -> None:
    """What is behind the stable end was read before and since: it did not stay there."""
    history.add("writer", send("k", 1, 0), txn=1, status="info")
    history.add("reader", assign("k", 0), poll("k", 0, 1), window("k", 0, 1))
    history.add("probe", log_end("k", 2), stable_end("k", 0))
    history.add("reader", window("k", 1, 2))


@shows()
def a_position_that_was_asked_for_in_vain_says_nothing(history: Recorder) -> None:
    history.add("copier", assign("k", 0), poll("k", 0, 1), poll("k", 1, 2), position("k", 2, "g"), txn=1)
    history.add("probe", position("k", 2, "g"), log_end("k", 2), stable_end("k", 2))
    history.add("probe", position("k", 0, "g"), status="fail")


@shows("unseen")
def a_record_whose_offset_is_not_known_is_not_before_the_end(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("writer", send("k", 2))
    history.add("reader", window("k", 0, 1), poll("k", 0, 1))
    history.add("probe", log_end("k", 1))


@shows("effect_missing")
def an_effect_row_that_failed_tells_a_target_from_a_partition(history: Recorder) -> None:
    """Of all effects not one was found."""
    history.add("service", send("accounts", 1))
    history.add("ledger", window("accounts", 0, 1))
    history.add("ledger", effect("accounts", 0), status="fail")


@shows()
def a_reader_that_went_to_the_end_before_the_send_proves_nothing(history: Recorder) -> None:
    history.add("reader", window("k", 0, 2))
    history.add("writer", send("k", 1, 0), send("j", 2, 0))


@shows()
def a_reader_of_another_partition_proves_nothing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), send("i", 3, 0))
    history.add("reader", window("j", 0, 2), poll("j", 0, 2))


@shows("torn_transaction")
def a_part_of_a_committed_transaction_is_missing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1)
    history.add("reader", poll("k", 0, 1))
    history.add("reader", window("j", 0, 1))


@shows("torn_transaction")
def a_part_of_a_transaction_of_unknown_outcome_is_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1, status="info")
    history.add("reader", assign("k", 0), poll("k", 1, 2))


@shows()
def a_transaction_of_unknown_outcome_is_wholly_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1, status="info")
    history.add("reader", window("k", 0, 1), poll("k", 0, 1), window("j", 0, 1), poll("j", 0, 2))


@shows()
def a_transaction_of_unknown_outcome_is_wholly_missing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1, status="info")
    history.add("reader", window("k", 0, 2), window("j", 0, 1))


@shows()
def two_attempts_of_unknown_outcome_and_one_of_them_is_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1), send("k", 2), txn=1, status="info")
    history.add("writer", send("k", 1), txn=2, status="info")
    history.add("reader", window("k", 0, 9), poll("k", 3, 1))


@shows()
def one_offset_tells_which_of_two_attempts_is_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2), txn=1, status="info")
    history.add("writer", send("k", 1, 3), send("k", 2), txn=2, status="info")
    history.add("reader", window("k", 0, 9), poll("k", 3, 1), poll("k", 4, 2))


@shows("torn_transaction")
def one_offset_tells_which_of_two_attempts_is_torn(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2), txn=1, status="info")
    history.add("writer", send("k", 1, 3), send("k", 2), txn=2, status="info")
    history.add("reader", window("k", 0, 9), poll("k", 3, 1))
    history.add("probe", log_end("k", 9))


@shows("torn_transaction")
def two_equal_attempts_of_unknown_outcome_and_a_part_of_one_is_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1), send("j", 2), txn=1, status="info")
    history.add("writer", send("k", 1), send("j", 2), txn=2, status="info")
    history.add("reader", poll("k", 3, 1), window("j", 0, 4))
    history.add("probe", log_end("j", 4))


@shows()
def two_equal_attempts_of_unknown_outcome_and_one_is_visible(history: Recorder) -> None:
    history.add("writer", send("k", 1), send("j", 2), txn=1, status="info")
    history.add("writer", send("k", 1), send("j", 2), txn=2, status="info")
    history.add("reader", poll("k", 3, 1), window("j", 0, 4), poll("j", 3, 2))


@shows("torn_transaction")
def a_position_of_a_transaction_of_unknown_outcome_is_visible_and_its_output_is_not(history: Recorder) -> None:
    history.add("copier", position("i", 1, "copy"), txn=1)
    history.add("copier", send("k", 2), position("i", 2, "copy"), txn=2, status="info")
    history.add("probe", position("i", 2, "copy"))
    history.add("reader", window("k", 0, 9))
    history.add("end", log_end("k", 9))


@shows("torn_transaction")
def a_first_position_of_a_transaction_of_unknown_outcome_is_visible_and_its_output_is_not(history: Recorder) -> None:
    history.add("copier", poll("i", 0, 1, "copy"), send("k", 2), position("i", 1, "copy"), txn=2, status="info")
    history.add("probe", position("i", 1, "copy"))
    history.add("reader", window("k", 0, 9))
    history.add("end", log_end("k", 9))


@shows("torn_transaction")
def a_position_of_one_of_two_equal_attempts_is_visible_and_their_output_is_not(history: Recorder) -> None:
    for number in range(2):
        rows = poll("i", 0, 1, "copy"), send("k", 2), position("i", 1, "copy")
        history.add("copier", *rows, txn=number, status="info")
    history.add("probe", position("i", 1, "copy"))
    history.add("reader", window("k", 0, 9))
    history.add("end", log_end("k", 9))


@shows()
def a_position_that_another_may_have_given_proves_no_transaction(history: Recorder) -> None:
    """By another transaction, before the history, before the transaction, or another group's."""
    history.add("probe", position("l", 2, "copy"))
    for number, key in enumerate("ijlm"):
        history.add("copier", send("k", number), position(key, 2, "copy"), txn=number, status="info")
    history.add("copier", position("i", 2, "copy"), txn=7)
    history.add("probe", *[position(key, 2, "copy") for key in "ijl"], position("m", 2, "sum"))
    history.add("reader", window("k", 0, 9))


@shows()
def the_other_part_of_a_transaction_was_not_looked_for(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1)
    history.add("reader", poll("k", 0, 1))


@shows("lost")
def the_log_ends_before_what_was_acknowledged(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("reader", window("k", 0, 1), poll("k", 0, 1))
    history.add("probe", log_end("k", 1))


@shows("lost")
def the_log_is_empty_though_a_record_was_acknowledged(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1)
    history.add("reader", window("k", 0, 0))
    history.add("probe", log_end("k", 0))


@shows("unseen")
def the_log_is_empty_though_a_record_was_sent_nobody_knows_where(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("reader", window("k", 0, 0))
    history.add("probe", log_end("k", 0))


@shows("torn_transaction")
def the_log_ends_before_a_part_of_a_transaction(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 7), txn=1)
    history.add("reader", poll("k", 0, 1), window("j", 0, 7))
    history.add("probe", log_end("j", 7))


@shows()
def the_end_of_the_log_was_seen_before_the_send_or_the_commit(history: Recorder) -> None:
    history.add("writer", send("j", 1, 0), txn=1)
    history.add("probe", log_end("k", 0), log_end("j", 0))
    history.add("writer", send("k", 1, 0))
    history.add("writer", send("j", 2, 1), txn=1)


@shows()
def the_last_answer_about_the_end_counts(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("probe", log_end("k", 0))
    history.add("probe", log_end("k", 1))
    history.add("probe", log_end("k", 0), status="fail")


@shows()
def what_stood_behind_the_end_was_dropped(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("broker", gone("k", 0, 2))
    history.add("reader", poll("k", 0, 1))
    history.add("reader", window("k", 0, 2))
    history.add("probe", log_end("k", 0))


@shows("lost")
def a_record_was_read_and_is_gone_from_a_later_look(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("one", poll("k", 0, 1))
    history.add("two", poll("k", 0, 1))
    history.add("final", window("k", 0, 1))


@shows("lost")
def a_record_of_a_writer_that_nobody_recorded_was_read_and_is_gone(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1), poll("k", 1, 2))
    history.add("final", window("k", 0, 2), poll("k", 0, 1))


@shows("lost")
def a_record_was_read_and_the_log_ends_before_it(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("one", poll("k", 0, 1), poll("k", 1, 2))
    history.add("final", window("k", 0, 1), poll("k", 0, 1))
    history.add("probe", log_end("k", 1))


@shows("torn_transaction")
def a_part_of_a_transaction_was_read_and_is_gone(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1)
    history.add("one", poll("k", 0, 1), poll("j", 0, 2))
    history.add("final", window("j", 0, 1))


@shows()
def a_record_that_one_look_did_not_give_was_read_later(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("two", window("k", 0, 1))
    history.add("final", window("k", 0, 1), poll("k", 0, 1))


@shows()
def a_look_at_other_places_proves_nothing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 2), send("k", 2), send("k", 3, 4))
    history.add("one", poll("k", 4, 3))
    history.add("broker", gone("k", 2, 3))
    history.add("reader", window("k", 5, 6))
    history.add("writer", send("j", 1, 2), send("j", 2))
    history.add("reader", window("j", 5, 6))
    history.add("reader", window("j", 0, 2))


@shows("unseen")
def two_looks_together_cover_the_whole_log(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("one", window("k", 0, 2))
    history.add("other", window("k", 2, 4))
    history.add("probe", log_end("k", 4))


@shows()
def looks_that_do_not_reach_the_end_prove_nothing_of_an_unknown_place(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("one", window("k", 0, 2))
    history.add("probe", log_end("k", 4))


@shows("unseen")
def a_reader_asked_for_the_very_place_only(history: Recorder) -> None:
    history.add("writer", send("k", 1, 5))
    history.add("one", window("k", 5, 6))


@shows()
def a_look_that_was_not_answered_proves_nothing(history: Recorder) -> None:
    for status in ("fail", "info"):
        history.add("writer", send(status, 1, 0))
        history.add("reader", window(status, 0, 5), status=status)


@shows()
def a_reader_looked_before_the_transaction_was_committed(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1)
    history.add("reader", window("k", 0, 1))
    history.add("writer", send("j", 2, 0), txn=1)


# Places and values.


@shows("duplicated")
def one_value_stands_at_two_offsets(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 0, 1), poll("k", 1, 1))


@shows("duplicated")
def one_value_was_acknowledged_elsewhere_than_it_was_read(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 1, 1))


@shows("duplicated")
def two_committed_transactions_sent_one_value_and_one_is_read(history: Recorder) -> None:
    history.add("one", send("k", 1), txn=1)
    history.add("two", send("k", 1), txn=2)
    history.add("reader", poll("k", 0, 1))


@shows()
def one_value_was_sent_again_for_the_first_answer_was_lost(history: Recorder) -> None:
    history.add("one", send("k", 1), txn=1, status="info")
    history.add("one", send("k", 1), txn=2)
    history.add("two", send("j", 1))
    history.add("two", send("j", 1))
    history.add("reader", poll("k", 0, 1), poll("j", 0, 1))


@shows()
def one_value_on_two_partitions_is_two_records(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 1, 1))
    history.add("reader", poll("k", 0, 1), poll("j", 1, 1))


@shows()
def an_aborted_batch_is_run_again_with_the_same_values(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("writer", send("k", 1, 2), txn=2)
    history.add("reader", window("k", 0, 4), poll("k", 2, 1))


@shows()
def of_two_attempts_without_offsets_the_one_that_committed_is_read(history: Recorder) -> None:
    history.add("writer", send("k", 1), txn=1, status="fail")
    history.add("writer", send("k", 1), txn=2)
    history.add("reader", poll("k", 2, 1))


@shows("inconsistent_offsets")
def one_offset_holds_two_values(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("other", poll("k", 0, 2))


@shows("inconsistent_offsets")
def another_value_is_read_where_an_aborted_one_was_acknowledged(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("other", send("k", 2), txn=2)
    history.add("reader", poll("k", 0, 2))


@shows("inconsistent_offsets")
def another_value_is_acknowledged_where_one_of_unknown_outcome_was(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="info")
    history.add("other", send("k", 2, 0), txn=2)
    history.add("reader", poll("j", 0, 3))


@shows()
def two_readers_see_the_same(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("other", poll("k", 0, 1))


@shows("phantom")
def a_value_was_written_by_nobody(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 0, 1), poll("k", 1, 2))


@shows()
def the_writers_of_another_partition_are_not_in_the_history(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("reader", poll("k", 0, 1), poll("j", 1, 2))


# Isolation.


@shows("aborted_read")
def a_reader_sees_what_was_aborted(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("reader", poll("k", 0, 1))


@shows("aborted_read")
def a_reader_sees_the_attempt_that_was_aborted(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("writer", send("k", 1, 2), txn=2)
    history.add("reader", poll("k", 0, 1), poll("k", 2, 1))


@shows()
def what_failed_itself_may_have_read_anything(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("copier", poll("k", 0, 1), txn=2, status="fail")


@shows("aborted_read")
def a_transaction_of_unknown_outcome_that_was_committed_saw_what_was_aborted(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("copier", poll("k", 0, 1), send("j", 2), txn=2, status="info")
    history.add("reader", poll("j", 0, 2))


@shows()
def a_transaction_of_unknown_outcome_may_have_read_anything(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1, status="fail")
    history.add("copier", poll("k", 0, 1), send("j", 2), txn=2, status="info")


@shows("precommitted_read")
def a_transaction_sees_its_own_record(history: Recorder) -> None:
    history.add("copier", send("k", 1, 0), poll("k", 0, 1), txn=1)


@shows("precommitted_read")
def who_sends_a_record_has_read_it_before(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1), txn=1)
    history.add("one", send("k", 1, 0), txn=2)


@shows("precommitted_read")
def somebody_read_it_before_the_last_operation_of_its_transaction_began(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), txn=1)
    history.add("other", poll("k", 0, 1))
    history.add("one", send("j", 3, 0))
    history.add("one", send("k", 2, 1), txn=1)


@shows()
def it_is_told_of_before_it_is_known_to_be_sent(history: Recorder) -> None:
    """When an operation began nobody knows but by the one before it of its process."""
    history.add("one", send("j", 3, 0))
    history.add("other", poll("k", 0, 1))
    history.add("one", send("k", 1, 0), txn=1)


@shows()
def an_earlier_attempt_may_be_what_was_read(history: Recorder) -> None:
    history.add("one", send("k", 1), txn=1, status="info")
    history.add("other", poll("k", 0, 1))
    history.add("one", send("j", 3, 0))
    history.add("one", send("k", 1), txn=2, status="info")


@shows()
def who_read_it_early_did_not_happen(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1), txn=1, status="fail")
    history.add("one", send("k", 1, 0), txn=2)


@shows()
def a_later_transaction_of_the_same_process_sees_it(history: Recorder) -> None:
    history.add("copier", send("k", 1, 0), txn=1)
    history.add("copier", poll("k", 0, 1), txn=2)


@shows("intermediate_read")
def a_window_shows_a_part_of_a_transaction(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", window("k", 0, 2), poll("k", 0, 1))
    history.add("other", poll("k", 0, 1), poll("k", 1, 2))


@shows("intermediate_read", "int_nonmonotonic_poll")
def a_record_that_was_read_twice_does_not_stand_for_another(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", window("k", 0, 2), poll("k", 0, 1), poll("k", 0, 1))
    history.add("other", poll("k", 0, 1), poll("k", 1, 2))


@shows("intermediate_read")
def a_transaction_of_unknown_outcome_that_was_committed_saw_a_part(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", window("k", 0, 2), poll("k", 0, 1), send("j", 3), txn=2, status="info")
    history.add("other", poll("k", 0, 1), poll("k", 1, 2), poll("j", 0, 3))


@shows("intermediate_read")
def a_record_from_behind_the_window_does_not_stand_for_another(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", window("k", 0, 2), poll("k", 0, 1), assign("k", 5), poll("k", 5, 3))
    history.add("writer", send("k", 3, 5))
    history.add("other", poll("k", 0, 1), poll("k", 1, 2))


@shows()
def what_stands_between_two_windows_was_not_asked_for(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 10), send("k", 3, 20), txn=1)
    rest = poll("k", 0, 1), assign("k", 20), poll("k", 20, 3)
    history.add("one", window("k", 0, 2), window("k", 20, 22), window("k", 1, 3), *rest)
    history.add("other", poll("k", 0, 1), poll("k", 10, 2), poll("k", 20, 3))


@shows("intermediate_read")
def a_window_over_two_partitions_shows_one_half(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 2, 0), txn=1)
    history.add("one", poll("k", 0, 1), window("j", 0, 1))
    history.add("other", poll("j", 0, 2))


@shows()
def a_poll_ends_in_the_middle_of_a_transaction(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", poll("k", 0, 1))
    history.add("one", poll("k", 1, 2))


@shows()
def a_window_without_any_of_the_transaction(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1), txn=1)
    history.add("one", window("k", 0, 2))
    history.add("other", poll("k", 0, 1), poll("k", 1, 2))


@shows("wr_cycle")
def two_transactions_read_each_other(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("j", 0, 2), txn=1)
    history.add("other", send("j", 2, 0), poll("k", 0, 1), txn=2)


@shows("wr_cycle")
def three_transactions_read_in_a_circle(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("i", 0, 3), txn=1)
    history.add("two", send("j", 2, 0), poll("k", 0, 1), txn=2)
    history.add("three", send("i", 3, 0), poll("j", 0, 2), txn=3)


@shows("wr_cycle")
def either_of_two_attempts_closes_the_circle(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("j", 3, 2), txn=1)
    for txn in (2, 3):
        history.add("two", send("j", 2), poll("k", 0, 1), txn=txn, status="info")


@shows("wr_cycle")
def two_records_of_two_attempts_each_close_a_circle(history: Recorder) -> None:
    """Both readers are of unknown outcome themselves."""
    for txn in (1, 2):
        history.add("one", send("k", 1), poll("j", 3, 2), txn=txn, status="info")
    for txn in (3, 4):
        history.add("two", send("j", 2), poll("k", 3, 1), txn=txn, status="info")


@shows()
def one_of_two_attempts_does_not_close_the_circle(history: Recorder) -> None:
    """It did not read; it read of another; it is another one that read."""
    history.add("one", send("k", 1, 0), poll("j", 3, 2), txn=1)
    history.add("two", send("j", 2), poll("k", 0, 1), txn=2, status="info")
    history.add("two", send("j", 2), txn=3, status="info")
    history.add("three", send("l", 5, 0), txn=4)
    history.add("three", send("m", 6, 0), poll("n", 3, 7), txn=5)
    history.add("four", send("n", 7), poll("l", 0, 5), txn=6, status="info")
    history.add("four", send("n", 7), poll("m", 0, 6), txn=7, status="info")
    history.add("five", send("n", 8), poll("m", 0, 6), txn=8, status="info")


@shows("wr_cycle")
def one_in_the_circle_is_of_unknown_outcome_and_was_committed(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("j", 0, 2), txn=1)
    history.add("two", send("j", 2, 0), poll("i", 0, 3), txn=2, status="info")
    history.add("three", send("i", 3, 0), poll("k", 0, 1), txn=3)


@shows()
def three_transactions_read_in_a_chain_backwards(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("j", 0, 2), txn=1)
    history.add("two", send("j", 2, 0), poll("i", 0, 3), txn=2)
    history.add("three", send("i", 3, 0), txn=3)


# Order of polls.


@shows("poll_skip")
def the_next_poll_begins_behind_a_record(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("one", poll("k", 2, 3))
    history.add("other", poll("k", 1, 2))


@shows()
def the_next_poll_begins_behind_a_marker(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("one", poll("k", 2, 3))


@shows()
def the_next_poll_begins_behind_what_was_compacted(history: Recorder) -> None:
    history.add("other", poll("k", 1, 2))
    history.add("broker", gone("k", 0, 2))
    history.add("one", assign("k", 0))
    history.add("one", poll("k", 2, 3))


@shows("poll_skip")
def records_were_skipped_whatever_became_of_the_transaction_in_between(history: Recorder) -> None:
    history.add("other", *[poll("k", offset, offset + 1) for offset in range(6)])
    history.add("one", assign("k", 0), poll("k", 0, 1), txn=1)
    history.add("one", poll("k", 1, 2), txn=2, status="info")
    history.add("one", poll("k", 2, 3), txn=3, status="info")
    history.add("one", poll("k", 5, 6), txn=4)


@shows()
def after_a_transaction_in_doubt_a_process_goes_on_behind_it_or_reads_it_again(history: Recorder) -> None:
    """Nor is known where it stands if it never said where it began, or if it may have gone back in that transaction."""
    history.add("other", *[poll("k", offset, offset + 1) for offset in range(6)])
    for txn, (name, then) in enumerate([("one", 1), ("two", 2)]):
        history.add(name, assign("k", 0), poll("k", 0, 1), txn=10 * txn)
        history.add(name, poll("k", 1, 2), txn=10 * txn + 1, status="info")
        history.add(name, poll("k", then, then + 1), txn=10 * txn + 2)
    history.add("three", poll("k", 1, 2), txn=31, status="info")
    history.add("three", poll("k", 5, 6), txn=32)
    history.add("four", assign("k"), poll("k", 1, 2), txn=41, status="info")
    history.add("four", poll("k", 5, 6), txn=42)
    history.add("five", assign("k", 0), *[poll("k", offset, offset + 1) for offset in range(5)], txn=51)
    history.add("five", poll("k", 1, 2), txn=52, status="info")
    history.add("five", poll("k", 5, 6), txn=53)
    history.add("six", assign("k", 0), poll("k", 0, 1), txn=61)
    history.add("six", poll("k", 1, 2), txn=62, status="info")
    history.add("six", crash())
    history.add("six", poll("k", 5, 6), txn=63)
    history.add("seven", assign("k", 0), poll("k", 0, 1))
    history.add("seven", poll("k", 1, 2), status="info")  # what else the answer had, nobody knows
    history.add("seven", poll("k", 5, 6))


@shows("poll_skip")
def the_first_poll_begins_behind_the_assigned_offset(history: Recorder) -> None:
    history.add("one", assign("k", 0))
    history.add("one", poll("k", 1, 2))
    history.add("other", poll("k", 0, 1))


@shows("poll_skip")
def a_consumer_goes_on_behind_an_aborted_transaction(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), txn=1)
    history.add("copier", poll("k", 1, 2), txn=2, status="fail")
    history.add("copier", poll("k", 2, 3), txn=3)


@shows()
def a_consumer_goes_back_after_an_aborted_transaction(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), txn=1)
    history.add("copier", poll("k", 1, 2), txn=2, status="fail")
    history.add("copier", poll("k", 1, 2), txn=3)


@shows()
def after_an_unknown_outcome_the_position_is_not_known(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), txn=1)
    history.add("copier", poll("k", 1, 2), txn=2, status="info")
    history.add("copier", poll("k", 2, 3), txn=3)


@shows("poll_skip")
def a_transaction_of_unknown_outcome_that_was_committed_skips(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), txn=1)
    history.add("copier", poll("k", 2, 3), send("j", 3), txn=2, status="info")
    history.add("reader", poll("k", 1, 2), poll("j", 0, 3))


@shows("nonmonotonic_poll")
def after_a_transaction_of_unknown_outcome_that_was_committed_the_position_is_known(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), send("j", 1), txn=1, status="info")
    history.add("copier", poll("k", 0, 1), txn=2)
    history.add("reader", poll("j", 0, 1))


@shows()
def in_a_group_partitions_move_between_polls(history: Recorder) -> None:
    history.add("one", subscribe())
    history.add("one", poll("k", 0, 1))
    history.add("one", poll("k", 2, 3))
    history.add("other", poll("k", 1, 2))
    history.add("one", poll("k", 0, 1))


@shows()
def in_a_group_a_stated_position_is_for_the_next_unit_though_it_failed(history: Recorder) -> None:
    history.add("one", subscribe(), assign("k", 1))
    history.add("one", poll("k", 1, 2), txn=1, status="fail")
    history.add("one", poll("k", 0, 1), poll("k", 1, 2), txn=2)


@shows("nonmonotonic_poll")
def in_a_group_a_stated_position_is_judged(history: Recorder) -> None:
    history.add("one", subscribe(), assign("k", 1))
    history.add("one", poll("k", 0, 1))


@shows()
def after_a_crash_the_position_is_not_known(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1), poll("k", 1, 2))
    history.add("one", crash())
    history.add("one", poll("k", 0, 1))


@shows("nonmonotonic_poll")
def a_group_of_one_process_is_none_of_another(history: Recorder) -> None:
    history.add("one", subscribe())
    for name in ("one", "other"):
        history.add(name, poll("k", 0, 1))
        history.add(name, poll("k", 0, 1))


@shows("nonmonotonic_poll")
def the_next_poll_reads_again(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("one", poll("k", 0, 1))


@shows()
def the_next_poll_reads_again_as_it_was_told(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1))
    history.add("one", assign("k", 0))
    history.add("one", poll("k", 0, 1))


@shows("int_poll_skip")
def one_transaction_skips_a_record(history: Recorder) -> None:
    history.add("one", subscribe())
    history.add("one", poll("k", 0, 1), txn=1)
    history.add("one", poll("k", 2, 3), txn=1)
    history.add("other", poll("k", 1, 2))


@shows()
def one_transaction_skips_a_record_because_the_partition_moved(history: Recorder) -> None:
    history.add("one", subscribe())
    history.add("one", poll("k", 0, 1), assign("k"), poll("k", 2, 3), txn=1)
    history.add("other", poll("k", 1, 2))


@shows("int_nonmonotonic_poll")
def one_operation_goes_back(history: Recorder) -> None:
    history.add("one", poll("k", 1, 2), poll("k", 0, 1))


@shows("int_poll_skip")
def a_transaction_of_unknown_outcome_that_was_committed_skips_inside(history: Recorder) -> None:
    history.add("copier", poll("k", 0, 1), poll("k", 2, 3), send("j", 3), txn=2, status="info")
    history.add("reader", poll("k", 1, 2), poll("j", 0, 3))


@shows("int_nonmonotonic_poll")
def a_transaction_of_unknown_outcome_that_was_committed_goes_back_inside(history: Recorder) -> None:
    history.add("copier", poll("k", 1, 2), poll("k", 0, 1), send("j", 3), txn=2, status="info")
    history.add("reader", poll("j", 0, 3))


# Order of sends.


@shows("nonmonotonic_send")
def a_later_send_stands_first(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("writer", send("k", 2, 0))


@shows()
def sends_of_two_processes_stand_in_any_order(history: Recorder) -> None:
    history.add("one", send("k", 1, 1))
    history.add("other", send("k", 2, 0))


@shows("nonmonotonic_send")
def a_later_send_was_read_first(history: Recorder) -> None:
    history.add("writer", send("k", 1))
    history.add("writer", send("k", 2))
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows()
def a_send_without_an_answer_may_have_taken_effect_later(history: Recorder) -> None:
    history.add("writer", send("k", 1), status="info")
    history.add("writer", send("k", 2, 0))
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows()
def of_two_sends_without_an_answer_the_first_may_have_taken_effect_last(history: Recorder) -> None:
    history.add("writer", send("k", 1), status="info")
    history.add("writer", send("k", 2), status="info")
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows("nonmonotonic_send")
def a_send_without_an_answer_took_effect_before_it_began(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("writer", send("k", 2), status="info")
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows()
def a_send_without_an_answer_that_stands_first_may_be_of_another_attempt(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("writer", send("k", 2), status="info")
    history.add("other", send("k", 2), status="info")
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows("nonmonotonic_send")
def a_send_without_an_answer_between_two_others_excuses_neither(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("writer", send("k", 2), status="info")
    history.add("writer", send("k", 3, 0))
    history.add("reader", poll("k", 0, 3), poll("k", 1, 1), poll("k", 2, 2))


@shows("int_nonmonotonic_send")
def the_sends_of_one_transaction_stand_in_reverse(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1), send("k", 2, 0), txn=1)


@shows("int_nonmonotonic_send")
def the_sends_of_a_transaction_of_unknown_outcome_that_was_committed_stand_in_reverse(history: Recorder) -> None:
    history.add("writer", send("k", 1), send("k", 2), txn=1, status="info")
    history.add("reader", poll("k", 0, 2), poll("k", 1, 1))


@shows()
def the_sends_of_a_transaction_of_unknown_outcome_were_acknowledged_in_reverse(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1), send("k", 2, 0), txn=1, status="info")
    history.add("reader", poll("j", 0, 2))


@shows("int_send_skip")
def another_writer_stands_between_the_sends_of_a_transaction(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), send("k", 2, 2), txn=1)
    history.add("other", send("k", 3, 1))
    history.add("reader", poll("k", 0, 1), poll("k", 1, 3), poll("k", 2, 2))


# Processing.


@shows("consumed_twice")
def two_transactions_consume_one_record(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), txn=1)
    history.add("other", poll("k", 0, 1, "copy"), txn=2)


@shows("consumed_twice")
def a_transaction_of_unknown_outcome_that_was_committed_consumes_it_too(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), send("j", 2), txn=1, status="info")
    history.add("other", poll("k", 0, 1, "copy"), txn=2)
    history.add("reader", poll("j", 0, 2))


@shows()
def a_transaction_of_unknown_outcome_may_have_consumed_nothing(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), send("j", 2), txn=1, status="info")
    history.add("other", poll("k", 0, 1, "copy"), txn=2)


@shows("consumed_twice")
def a_position_was_seen_before_another_began_to_take_the_same(history: Recorder) -> None:
    """So it is of the first one, though the second one gave the same."""
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1, status="info")
    history.add("probe", position("k", 1, "copy"))
    history.add("other", assign("k", 0))
    history.add("other", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=2)


@shows()
def a_position_was_seen_when_another_may_have_given_it_already(history: Recorder) -> None:
    """That one was answered later, and nobody knows when it began."""
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1, status="info")
    history.add("probe", position("k", 1, "copy"))
    history.add("other", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=2)


@shows()
def two_groups_consume_one_record(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), txn=1)
    history.add("other", poll("k", 0, 1, "sum"), txn=2)


@shows()
def a_transaction_that_failed_consumed_nothing(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), txn=1, status="fail")
    history.add("other", poll("k", 0, 1, "copy"), txn=2)


@shows("consumed_never")
def a_group_goes_on_behind_a_record_that_it_never_consumed(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1)
    history.add("other", poll("k", 2, 3, "copy"), position("k", 3, "copy"), txn=2)
    history.add("reader", poll("k", 1, 2))


@shows("consumed_never")
def a_transaction_commits_a_position_behind_what_it_polled(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), position("k", 9, "copy"), txn=1)
    history.add("reader", poll("k", 5, 2))


@shows("consumed_never")
def who_consumed_the_record_was_not_committed(history: Recorder) -> None:
    """One failed, of the other nobody knows, but its output is not there."""
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1)
    history.add("one", poll("k", 1, 2, "copy"), position("k", 2, "copy"), txn=2, status="fail")
    history.add("two", poll("k", 1, 2, "copy"), send("j", 2), position("k", 2, "copy"), txn=3, status="info")
    history.add("three", poll("k", 2, 3, "copy"), position("k", 3, "copy"), txn=4)
    history.add("reader", poll("k", 1, 2), window("j", 0, 9))
    history.add("probe", log_end("j", 9))


@shows("consumed_never")
def a_consumer_commits_by_a_timer_what_it_has_not_polled(history: Recorder) -> None:
    history.add("writer", *[send("k", value, value) for value in range(3)])
    history.add("consumer", subscribe())
    history.add("consumer", poll("k", 0, 0, "g"), poll("k", 1, 1, "g"))
    history.add("consumer", crash())
    history.add("reader", *[poll("k", value, value) for value in range(3)])
    history.add("probe", position("k", 3, "g"))


@shows("consumed_never")
def the_member_that_takes_over_goes_on_behind_what_nobody_polled(history: Recorder) -> None:
    history.add("one", subscribe())
    history.add("two", subscribe())
    history.add("one", poll("k", 0, 0, "g"), poll("k", 1, 1, "g"))
    history.add("two", poll("k", 3, 3, "g"))
    history.add("reader", *[poll("k", value, value) for value in range(4)])
    history.add("probe", position("k", 4, "g"))


@shows("consumed_never")
def a_transaction_that_failed_makes_no_plain_group_one_with_transactions(history: Recorder) -> None:
    history.add("consumer", subscribe())
    history.add("consumer", poll("k", 0, 0, "g"))
    history.add("other", position("z", 1, "g"), txn=7, status="fail")
    history.add("reader", *[poll("k", value, value) for value in range(2)])
    history.add("probe", position("k", 2, "g"))


def _copied_with_a_timer(history: Recorder, status: str, *, given: tuple[int, ...] = ()) -> None:
    """Transactions take 0 and 1 of which none is certainly committed; the group's position is 2 in the end, by a timer."""
    history.add("writer", send("k", 0, 0), send("k", 1, 1))
    history.add("probe", position("k", 0, "g"))
    history.add("copier", poll("k", 0, 0, "g"), send("j", 9), position("k", 1, "g"), txn=1, status=status)
    taken = poll("k", 0, 0, "g"), poll("k", 1, 1, "g")
    history.add("copier", *taken, *[position("k", offset, "g") for offset in given], txn=2, status="fail")
    history.add("reader", window("k", 0, 2), poll("k", 0, 0), poll("k", 1, 1), window("j", 0, 2))
    history.add("probe", *[end(key, 2) for key in "kj" for end in (log_end, stable_end)], position("k", 2, "g"))


@shows("consumed_never", "consumed_never")
def a_timer_commits_what_only_failed_transactions_took(history: Recorder) -> None:
    _copied_with_a_timer(history, "fail")


@shows("consumed_never", "consumed_never")
def a_timer_commits_what_a_transaction_took_whose_output_is_not_there(history: Recorder) -> None:
    _copied_with_a_timer(history, "info")


@shows("torn_progress")
def a_position_that_a_failed_transaction_gave_is_torn_and_nothing_else(history: Recorder) -> None:
    _copied_with_a_timer(history, "fail", given=(2,))


@shows("consumed_never")
def a_position_that_a_failed_transaction_gave_that_took_nothing(history: Recorder) -> None:
    """The group stood below it before, so it cannot be from before its time."""
    history.add("probe", position("k", 0, "g"), poll("k", 0, 0))
    history.add("copier", poll("j", 0, 0, "g"))
    history.add("copier", position("k", 1, "g"), txn=1, status="fail")
    history.add("probe", position("k", 1, "g"))


@shows("consumed_never")
def a_group_goes_on_with_a_timer_where_its_transactions_fail(history: Recorder) -> None:
    """They are committed elsewhere."""
    history.add("copier", poll("j", 0, 0, "g"), position("j", 1, "g"), txn=1)
    history.add("copier", poll("k", 0, 0, "g"), position("k", 1, "g"), txn=2, status="fail")
    history.add("reader", *[poll("k", value, value) for value in range(2)])
    history.add("copier", poll("k", 0, 0, "g"))
    history.add("probe", position("k", 2, "g"))


@shows()
def what_failed_transactions_took_another_one_took_again(history: Recorder) -> None:
    history.add("probe", position("k", 0, "g"))
    history.add("copier", poll("k", 0, 0, "g"), position("k", 1, "g"), txn=1, status="fail")
    history.add("copier", poll("k", 0, 0, "g"), poll("k", 1, 1, "g"), position("k", 2, "g"), txn=2, status="info")
    history.add("probe", position("k", 2, "g"))


@shows("consumed_never")
def a_group_goes_on_where_it_polls_nothing(history: Recorder) -> None:
    history.add("reader", *[poll("k", value, value) for value in range(3)], poll("j", 0, 9))
    history.add("probe", position("k", 2, "g"))
    history.add("consumer", subscribe())
    history.add("consumer", poll("j", 0, 9, "g"))
    history.add("probe", position("k", 3, "g"))


@shows()
def a_position_from_before_the_history_went_past_what_it_does_not_show(history: Recorder) -> None:
    history.add("reader", *[poll("k", value, value) for value in range(4)])
    history.add("probe", position("k", 3, "g"))
    history.add("consumer", subscribe())
    history.add("consumer", poll("k", 3, 3, "g"))
    history.add("probe", position("k", 4, "g"))


@shows()
def what_a_consumer_polled_and_did_not_live_to_tell_may_have_been_handled(history: Recorder) -> None:
    history.add("consumer", subscribe())
    history.add("consumer", poll("k", 0, 0, "g"))
    history.add("consumer", poll("k", 1, 1, "g"), status="info")
    history.add("reader", *[poll("k", value, value) for value in range(2)])
    history.add("probe", position("k", 2, "g"))


@shows("consumed_never")
def the_first_transaction_of_a_group_fails_and_another_member_goes_on_behind_it(history: Recorder) -> None:
    history.add("one", poll("k", 0, 0, "g"), position("k", 1, "g"), txn=1, status="fail")
    history.add("two", poll("k", 1, 1, "g"), poll("k", 2, 2, "g"), position("k", 3, "g"), send("j", 9), txn=2)
    history.add("reader", *[poll("k", value, value) for value in range(3)])


@shows()
def who_consumed_the_record_may_have_been_committed(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1)
    history.add("two", poll("k", 1, 2, "copy"), send("j", 2), position("k", 2, "copy"), txn=3, status="info")
    history.add("three", poll("k", 2, 3, "copy"), position("k", 3, "copy"), txn=4)
    history.add("reader", poll("k", 1, 2))


@shows("consumed_never")
def a_group_was_seen_before_a_record_that_only_an_aborted_transaction_took(history: Recorder) -> None:
    history.add("probe", position("k", 0, "copy"))
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=1, status="fail")
    history.add("two", poll("k", 1, 2, "copy"), position("k", 2, "copy"), txn=2)


@shows()
def a_group_was_seen_elsewhere_or_later(history: Recorder) -> None:
    """Before its time: another group's position, one behind the record, one that was seen when it had begun, a failed look."""
    history.add("reader", poll("k", 0, 1), poll("k", 1, 2))
    history.add("probe", position("k", 0, "copy"), status="fail")
    history.add("probe", position("k", 0, "sum"), position("k", 1, "copy"), position("j", 0, "copy"))
    history.add("two", poll("k", 1, 2, "copy"), position("k", 2, "copy"), txn=2)
    history.add("two", position("k", 2, "sum"), txn=3)  # took nothing: it was set there
    history.add("probe", position("k", 0, "copy"))
    history.add("probe", position("k", 2, "copy"))


@shows("consumed_never")
def a_group_went_past_a_partition_of_which_it_took_nothing(history: Recorder) -> None:
    history.add("probe", position("k", 0, "copy"), position("j", 0, "copy"))
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), position("j", 1, "copy"), txn=1)
    history.add("reader", poll("j", 0, 2))


@shows("torn_progress")
def a_group_stands_behind_the_end_of_the_log(history: Recorder) -> None:
    history.add("one", poll("k", 0, 1, "copy"), position("k", 50, "copy"), txn=1)
    history.add("probe", log_end("k", 1), position("k", 50, "copy"))


@shows()
def a_position_behind_an_end_says_nothing_elsewhere_or_later(history: Recorder) -> None:
    """At the end; what was sent since; where the group never read, and its position is a number of another kind."""
    history.add("one", poll("k", 0, 1, "copy"), poll("j", 0, 1, "copy"), txn=1)
    history.add("one", position("k", 1, "copy"), position("j", 2, "copy"), position("progress", 7, "copy"), txn=1)
    history.add("probe", log_end("j", 1))
    history.add("probe", position("k", 1, "copy"), position("j", 2, "copy"), position("progress", 7, "copy"))
    history.add("probe", log_end("k", 1), log_end("progress", 3))


@shows()
def a_group_consumed_all_that_its_position_passed(history: Recorder) -> None:
    """What was before its time, was dropped, is a marker, another group's, or in no transaction's position: none counts."""
    history.add("reader", *[poll("k", offset, offset + 1) for offset in (0, 1, 2, 4, 6, 7)])
    history.add("broker", gone("k", 2, 3))
    history.add("one", poll("k", 1, 2, "copy"), position("k", 4, "copy"), txn=1)
    history.add("two", poll("k", 4, 5, "copy"), txn=2)
    history.add("two", assign("k", 6), poll("k", 6, 7, "copy"), position("k", 7, "copy"), txn=2)
    history.add("probe", position("k", 9, "sum"))
    history.add("sum", poll("k", 0, 1, "sum"), txn=3)
    history.add("sum", position("k", 9, "other"), txn=3)


@shows("effect_repeated")
def an_effect_is_found_twice(history: Recorder) -> None:
    history.add("ledger", effect("accounts", 1))
    history.add("ledger", effect("accounts", 1))


@shows()
def an_effect_on_two_targets(history: Recorder) -> None:
    history.add("ledger", effect("accounts", 1))
    history.add("ledger", effect("archive", 1))
    history.add("ledger", effect("archive", 1), status="fail")


@shows()
def effects_that_were_meant_are_found(history: Recorder) -> None:
    """One at the second attempt, one of two attempts; one whose attempt failed is not there, nor one of unknown outcome."""
    history.add("booker", send("accounts", 1), send("accounts", 2), status="fail")
    history.add("booker", send("accounts", 1), txn=1, status="info")
    history.add("booker", send("accounts", 1), txn=2)
    for txn in (3, 4):
        history.add("booker", send("accounts", 3), txn=txn, status="info")
    history.add("booker", send("accounts", 4), status="info")
    history.add("ledger", window("accounts", 0, 2), effect("accounts", 1), effect("accounts", 3))


@shows()
def two_transactions_meant_an_effect_and_it_is_there_once(history: Recorder) -> None:
    for txn in (1, 2):
        history.add("booker", send("accounts", 1), txn=txn)
    history.add("ledger", effect("accounts", 1))


@shows("effect_missing")
def an_effect_that_was_meant_is_not_found(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), send("accounts", 2))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 1))


@shows("effect_missing")
def an_effect_that_was_found_is_gone(history: Recorder) -> None:
    """As when its database is restored. What stays there stays, and what nobody was to have, or who failed, is no loss."""
    history.add("booker", send("accounts", 1), send("accounts", 2))
    history.add("ledger", window("accounts", 0, 2), effect("accounts", 1), effect("accounts", 2))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 2))


@shows()
def of_two_looks_at_the_same_time_the_earlier_one_ends_last(history: Recorder) -> None:
    history.add("one", window("accounts", 0, 0))
    history.add("booker", send("accounts", 1))
    history.add("two", window("accounts", 0, 1), effect("accounts", 1))
    history.add("one", window("accounts", 0, 0))


@shows("effect_missing")
def an_effect_is_gone_for_another_who_asked_later(history: Recorder) -> None:
    history.add("booker", send("accounts", 1))
    history.add("two", window("accounts", 0, 1), effect("accounts", 1))
    history.add("one", window("archive", 0, 0))
    history.add("one", window("accounts", 0, 0))


@shows("effect_missing")
def all_effects_are_gone(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), status="info")
    history.add("ledger", effect("accounts", 1))
    history.add("ledger", window("accounts", 0, 0))


@shows("torn_transaction")
def an_effect_is_gone_of_a_transaction_whose_record_is_there(history: Recorder) -> None:
    history.add("copier", send("k", 1, 0), send("accounts", 1), txn=1)
    history.add("reader", window("k", 0, 1), poll("k", 0, 1))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 1))
    history.add("ledger", window("accounts", 0, 0))


@shows("aborted_read", "phantom")
def effects_that_should_not_have_been_there_are_gone(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), status="fail")
    history.add("ledger", window("accounts", 0, 2), effect("accounts", 1), effect("accounts", 2))
    history.add("ledger", window("accounts", 0, 0))


@shows()
def an_effect_that_one_look_did_not_find_was_found_later(history: Recorder) -> None:
    """And at another target the look that would have missed it was not answered, or it was dropped."""
    history.add("booker", *[send(target, 1) for target in ("accounts", "archive", "cache")])
    for target in ("accounts", "archive", "cache"):
        history.add("ledger", window(target, 0, 1), effect(target, 1))
    history.add("ledger", window("accounts", 0, 0))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 1))
    history.add("ledger", window("archive", 0, 0), status="fail")
    history.add("broker", gone("cache", 0, 1))
    history.add("ledger", window("cache", 0, 0))


@shows("effect_missing")
def a_look_at_all_effects_is_one_however_few_there_are(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), send("accounts", 2))
    history.add("ledger", window("accounts", 0, 2), effect("accounts", 1), effect("accounts", 2))
    history.add("booker", send("accounts", 3))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 1), effect("accounts", 2))


@shows()
def an_effect_is_found_by_each_who_asks_for_all(history: Recorder) -> None:
    """Whether it is known what was meant or not."""
    history.add("booker", send("accounts", 1))
    for _ in range(2):
        history.add("ledger", window("accounts", 0, 1), effect("accounts", 1))
        history.add("ledger", window("archive", 0, 1), effect("archive", 1))


@shows("effect_repeated")
def an_effect_is_found_twice_by_the_second_who_asks_for_all(history: Recorder) -> None:
    history.add("booker", send("accounts", 1))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 1))
    history.add("ledger", window("accounts", 0, 2), effect("accounts", 1), effect("accounts", 1))


@shows("effect_repeated")
def a_look_at_a_part_of_the_effects_is_none_at_all_of_them(history: Recorder) -> None:
    """So each effect is told of once, by whoever finds it."""
    for first in (1, 2):
        history.add("ledger", window("accounts", first, first + 1), effect("accounts", 1))


@shows("effect_repeated")
def who_reads_a_partition_to_its_end_so_far_does_not_ask_for_all_effects(history: Recorder) -> None:
    history.add("reader", poll("k", 0, 1), window("k", 0, 1), effect("k", 1))
    history.add("reader", poll("k", 1, 2), window("k", 1, 2), effect("k", 1))


@shows()
def effects_that_were_not_looked_for_all_or_before_are_not_missing(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), send("accounts", 2))
    history.add("ledger", effect("accounts", 1))
    history.add("ledger", window("archive", 0, 1), effect("archive", 1))
    history.add("booker", send("archive", 1), send("archive", 2))


@shows("torn_transaction")
def an_effect_of_a_transaction_whose_record_was_read_is_missing(history: Recorder) -> None:
    history.add("copier", send("k", 1, 0), send("accounts", 1), txn=1)
    history.add("copier", send("accounts", 2), txn=2)
    history.add("reader", poll("k", 0, 1))
    history.add("ledger", window("accounts", 0, 1), effect("accounts", 2))


@shows("torn_transaction")
def an_effect_proves_a_transaction_of_unknown_outcome_whose_record_is_missing(history: Recorder) -> None:
    history.add("copier", send("k", 1), send("accounts", 1), txn=1, status="info")
    history.add("reader", window("k", 0, 2))
    history.add("ledger", effect("accounts", 1))
    history.add("probe", log_end("k", 2))


@shows("torn_transaction")
def an_effect_proves_one_of_two_attempts_whose_record_is_missing(history: Recorder) -> None:
    for txn in (1, 2):
        history.add("copier", send("k", 1), send("accounts", 1), txn=txn, status="info")
    history.add("reader", window("k", 0, 2))
    history.add("ledger", effect("accounts", 1))
    history.add("probe", log_end("k", 2))


@shows()
def an_effect_does_not_prove_which_of_two_attempts_was_committed(history: Recorder) -> None:
    for txn in (1, 2):
        history.add("copier", send("k", txn), send("accounts", 1), txn=txn, status="info")
    history.add("reader", window("k", 0, 2))
    history.add("ledger", effect("accounts", 1))


@shows("aborted_read")
def an_effect_of_what_failed_is_found(history: Recorder) -> None:
    history.add("booker", send("accounts", 1), txn=1, status="fail")
    history.add("ledger", effect("accounts", 1))


@shows("phantom")
def an_effect_that_nobody_meant_is_found(history: Recorder) -> None:
    history.add("booker", send("accounts", 1))
    history.add("ledger", effect("accounts", 1), effect("accounts", 2))


@shows()
def effects_by_the_name_of_a_partition_are_beside_its_records(history: Recorder) -> None:
    """The final reader writes one for each record, or for some; they are no targets of effects."""
    history.add("writer", send("k", 1, 0), send("j", 1), send("j", 2), send("i", 1, 0))
    history.add("reader", window("k", 0, 1), poll("k", 0, 1), window("j", 0, 2), poll("j", 0, 1), poll("j", 1, 2))
    history.add("reader", effect("k", 1), effect("k", 3), effect("j", 1), effect("j", 3), effect("i", 3))


@shows("hung_transaction")
def the_stable_end_stays_below_the_end(history: Recorder) -> None:
    history.add("probe", stable_end("k", 1), log_end("k", 2))


@shows("hung_transaction")
def the_stable_end_was_asked_before_the_end_and_nothing_was_sent_in_between(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("probe", stable_end("k", 1))
    history.add("probe", log_end("k", 2))


@shows()
def the_stable_end_was_asked_before_the_last_send(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0))
    history.add("probe", stable_end("k", 1))
    history.add("writer", send("k", 2, 1), txn=1)
    history.add("probe", log_end("k", 3))


@shows()
def the_ends_were_asked_in_the_middle_of_a_transaction(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), txn=1)
    history.add("probe", stable_end("k", 0), log_end("k", 1))
    history.add("writer", send("k", 2, 1), txn=1)
    history.add("reader", window("k", 0, 2), poll("k", 0, 1), poll("k", 1, 2))


@shows()
def the_stable_end_arrives(history: Recorder) -> None:
    history.add("probe", stable_end("k", 1), log_end("k", 2))
    history.add("probe", stable_end("k", 2), log_end("k", 2))


@shows("stuck_progress")
def a_position_stays_below_a_record(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("probe", stable_end("k", 3), position("k", 1, "copy"))


@shows()
def a_position_stays_below_markers_only(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1), send("later", 2, 0))
    history.add("probe", stable_end("k", 3), position("k", 1, "copy"))
    history.add("probe", stable_end("k", 3), position("k", 2, "copy"))


@shows()
def a_position_was_seen_before_the_group_went_on(history: Recorder) -> None:
    """What it took, or gave itself, it took; a failed transaction took nothing, but the record may have come since."""
    history.add("writer", *[send(key, 1, 0) for key in "kji"])
    history.add("probe", *[position(key, 0, "copy") for key in "kjiml"])
    history.add("one", poll("k", 0, 1, "copy"), txn=1, status="info")
    history.add("one", position("j", 1, "copy"), poll("i", 0, 1, "copy"), txn=2)
    history.add("two", poll("l", 0, 1, "copy"), txn=3, status="fail")
    history.add("writer", send("m", 1, 0), send("l", 1, 0))
    history.add("probe", *[stable_end(key, 1) for key in "kjiml"])


@shows("stuck_progress")
def others_went_on_after_a_position_was_seen(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("j", 1, 0))
    history.add("probe", position("k", 0, "copy"))
    history.add("other", poll("k", 0, 1, "sum"), position("k", 1, "sum"), poll("j", 0, 1, "copy"), txn=1)
    history.add("one", poll("k", 0, 1, "copy"), position("k", 1, "copy"), txn=2, status="fail")
    history.add("probe", stable_end("k", 1), position("k", 1, "sum"))


@shows("stuck_progress")
def one_of_two_groups_stays_behind(history: Recorder) -> None:
    history.add("writer", send("k", 1, 1))
    history.add("probe", stable_end("k", 3), position("k", 2, "copy"), position("k", 0, "sum"))


@shows("torn_progress")
def a_position_is_not_what_the_last_transaction_gave(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), txn=1)
    history.add("copier", position("k", 4, "copy"), txn=2)
    history.add("probe", position("k", 2, "copy"))


@shows("torn_progress")
def a_position_came_although_its_transaction_failed(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), txn=1)
    history.add("copier", position("k", 4, "copy"), txn=2, status="fail")
    history.add("probe", position("k", 4, "copy"))


@shows("torn_progress")
def a_first_position_came_although_its_transaction_failed(history: Recorder) -> None:
    history.add(
        "copier", poll("k", 0, 1, "copy"), position("k", 1, "copy"), position("j", 4, "copy"), txn=1, status="fail"
    )
    history.add("probe", position("k", 1, "copy"), position("j", 4, "copy"))  # j may have stood there before


@shows()
def a_first_position_did_not_come_or_was_given_by_another_transaction(history: Recorder) -> None:
    taken = poll("k", 0, 1, "copy"), poll("l", 0, 1, "copy"), poll("j", 0, 1, "sum")
    said = [position(key, 1, "copy") for key in "klj"]
    history.add("copier", *taken, *said, txn=1, status="fail")
    history.add("copier", position("l", 1, "copy"), txn=2, status="info")
    history.add("probe", position("k", 0, "copy"), position("l", 1, "copy"), position("j", 1, "copy"))


@shows("torn_progress")
def a_position_of_a_transaction_of_unknown_outcome_that_was_committed_is_missing(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), txn=1)
    history.add("copier", position("k", 4, "copy"), send("j", 1), txn=2, status="info")
    history.add("reader", poll("j", 0, 1))
    history.add("probe", position("k", 2, "copy"))


@shows()
def a_position_of_a_transaction_of_unknown_outcome_may_come_or_not(history: Recorder) -> None:
    for key, seen in (("k", 2), ("l", 4)):
        history.add("copier", position(key, 2, "copy"), txn=ord(key))
        history.add("copier", position(key, 4, "copy"), txn=ord(key) + 100, status="info")
        history.add("probe", position(key, seen, "copy"))


@shows()
def a_transaction_of_unknown_outcome_was_committed_after_its_position_was_looked_for(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), txn=1)
    history.add("copier", position("k", 4, "copy"), send("j", 1), txn=2, status="info")
    history.add("probe", position("k", 2, "copy"))
    history.add("reader", poll("j", 0, 1))


@shows()
def a_position_that_was_committed_later_was_answered_before(history: Recorder) -> None:
    """The second process took over while the first one waited for its answer."""
    history.add("two", position("k", 4, "copy"), txn=2)
    history.add("one", position("k", 2, "copy"), txn=1)
    history.add("probe", position("k", 4, "copy"))


@shows("torn_progress")
def a_position_that_is_too_low_is_of_a_transaction_that_was_answered_late(history: Recorder) -> None:
    """Then the other one went back."""
    history.add("two", position("k", 2, "copy"), txn=2)
    history.add("one", position("k", 4, "copy"), txn=1)
    history.add("probe", position("k", 2, "copy"))


@shows("torn_progress")
def a_position_was_seen_in_between_that_nobody_gave(history: Recorder) -> None:
    """Or that a failed transaction gave."""
    history.add("one", position("k", 2, "copy"), txn=1)
    history.add("probe", log_end("j", 0))
    history.add("one", position("k", 3, "copy"), txn=2, status="fail")
    history.add("probe", position("k", 3, "copy"))
    history.add("one", position("k", 4, "copy"), txn=3)
    history.add("probe", position("k", 4, "copy"))


@shows()
def a_position_was_seen_in_between_that_somebody_may_have_given(history: Recorder) -> None:
    """At the beginning, by one of unknown outcome, by one that was answered later; of a group or key without transactions."""
    history.add(
        "probe", position("k", 1, "copy"), position("j", 7, "copy"), position("k", 6, "sum"), position("i", 1, "copy")
    )
    history.add("one", position("k", 2, "copy"), txn=1)
    history.add("one", position("k", 3, "copy"), txn=2, status="info")
    history.add("one", position("h", 2, "copy"), txn=4, status="info")
    for seen in (3, 4):
        history.add("probe", position("k", seen, "copy"), position("j", seen, "copy"), position("k", seen, "sum"))
        history.add("probe", position("h", 1, "copy"))
    history.add("one", position("k", 4, "copy"), position("i", 2, "copy"), txn=3)
    history.add("probe", position("k", 4, "copy"), position("i", 2, "copy"))
    history.add("probe", position("i", 2, "copy"))


def _two_batches(history: Recorder, *seen: Row, status: str = "ok", group: str = "copy") -> None:
    """Of two keys, and what was seen between the second one and the end, at which all is well."""
    for batch, (offset, became) in enumerate(((2, "ok"), (4, status))):
        given = position("k", offset, group), position("j", offset, group)
        history.add("copier", *given, txn=10 * len(group) + batch, status=became)
        history.add("probe", log_end("i", 0))
    history.add("probe", *seen)
    history.add("probe", position("k", 4, group), position("j", 4, group))


@shows("torn_progress")
def half_of_what_a_transaction_gave_was_seen_in_between(history: Recorder) -> None:
    _two_batches(history, position("k", 4, "copy"), position("j", 2, "copy"))


@shows("torn_progress")
def half_of_a_transaction_of_unknown_outcome_was_seen_in_between(history: Recorder) -> None:
    """What was seen of it proves that it was committed."""
    _two_batches(history, position("k", 4, "copy"), position("j", 2, "copy"), status="info")


@shows("torn_progress")
def half_of_what_a_transaction_gave_is_there_at_the_end(history: Recorder) -> None:
    """It is told once."""
    _two_batches(history)
    history.add("probe", position("k", 4, "copy"), position("j", 2, "copy"))


@shows("torn_progress")
def half_is_there_of_one_of_two_transactions_that_gave_the_same(history: Recorder) -> None:
    """The second one had input elsewhere alone. Whichever it was, the first one is committed."""
    for txn, offsets in enumerate(((2, 2), (4, 3), (4, 4))):
        history.add("copier", *[position(key, at, "copy") for key, at in zip("kj", offsets, strict=True)], txn=txn)
        history.add("probe", log_end("i", 0))
    history.add("probe", position("k", 4, "copy"), position("j", 2, "copy"))
    history.add("probe", position("k", 4, "copy"), position("j", 4, "copy"))


@shows("torn_progress")
def half_of_what_a_first_transaction_gave_was_seen_in_between(history: Recorder) -> None:
    """It took what stood below, so its group had not stood there before."""
    history.add("copier", position("j", 1, "copy"), txn=1)
    history.add("copier", poll("k", 0, 1, "copy"), position("k", 1, "copy"), position("j", 2, "copy"), txn=2)
    history.add("probe", position("k", 1, "copy"), position("j", 1, "copy"))
    history.add("probe", position("k", 1, "copy"), position("j", 2, "copy"))


@shows()
def what_was_seen_together_was_together(history: Recorder) -> None:
    """Before or behind a transaction; or it was not: it is of another group, or of a key that was asked for twice."""
    _two_batches(history, position("k", 2, "sum"), position("j", 2, "sum"), group="sum")
    _two_batches(history, position("k", 4, "sum"), position("j", 4, "sum"), position("j", 2, "copy"))
    twice = position("k", 2, "count"), position("k", 4, "count"), position("j", 2, "count")
    _two_batches(history, *twice, group="count")
    for txn, offset in ((91, 2), (92, 4)):
        history.add("copier", position("k", offset, "min"), position("k", offset, "max"), txn=txn)
        history.add("probe", log_end("i", 0))
    history.add("probe", position("k", 4, "min"), position("k", 2, "max"))
    history.add("probe", position("k", 4, "min"), position("k", 4, "max"))


@shows()
def a_position_that_a_transaction_gave_had_been_seen_before(history: Recorder) -> None:
    history.add("probe", position("k", 4, "copy"), position("j", 0, "copy"))
    _two_batches(history, position("k", 4, "copy"), position("j", 2, "copy"))


@shows()
def a_position_may_be_from_before_all_transactions(history: Recorder) -> None:
    """Nothing tells where the group had stood, for certain; or the look may have begun before any of them."""
    history.add("other", position("k", 2, "sum"), txn=0, status="info")
    history.add("copier", position("j", 2, "sum"), txn=1)
    history.add("probe", log_end("i", 0))
    history.add("copier", position("k", 4, "sum"), position("j", 4, "sum"), txn=2)
    history.add("probe", position("k", 4, "sum"), position("j", 2, "sum"))
    history.add("probe", position("k", 4, "sum"), position("j", 4, "sum"))
    for batch, offset in enumerate((2, 4)):
        history.add("copier", position("k", offset, "copy"), position("j", offset, "copy"), txn=3 + batch)
    history.add("slow", position("k", 4, "copy"), position("j", 2, "copy"))
    history.add("probe", position("k", 4, "copy"), position("j", 4, "copy"))


@shows()
def an_older_position_may_have_been_committed_late(history: Recorder) -> None:
    """Its transaction has no answer."""
    history.add("probe", position("k", 0, "copy"), position("j", 0, "copy"))
    history.add("one", position("k", 2, "copy"), position("j", 2, "copy"), txn=1, status="info")
    history.add("two", log_end("i", 0))
    history.add("two", position("k", 4, "copy"), position("j", 4, "copy"), txn=2)
    history.add("probe", position("k", 4, "copy"), position("j", 2, "copy"))
    history.add("two", position("k", 6, "copy"), position("j", 6, "copy"), txn=3)
    history.add("probe", position("k", 6, "copy"), position("j", 6, "copy"))


@shows()
def what_shows_a_transaction_of_unknown_outcome_another_one_gave_too(history: Recorder) -> None:
    """It was aborted."""
    history.add("copier", position("k", 2, "copy"), position("j", 2, "copy"), txn=1)
    history.add("probe", log_end("i", 0))
    history.add("copier", position("k", 4, "copy"), position("j", 4, "copy"), txn=2, status="info")
    history.add("copier", position("k", 4, "copy"), txn=3)
    history.add("probe", position("k", 4, "copy"), position("j", 2, "copy"))


@shows()
def an_older_position_came_again_behind_the_transaction(history: Recorder) -> None:
    """Or it was given by two at the same time; or twice by one, of which the last counts."""
    history.add("probe", log_end("k", 0))
    history.add("one", position("k", 2, "copy"), position("j", 2, "copy"), txn=1)
    history.add("probe", log_end("k", 0))
    history.add("one", position("k", 4, "copy"), position("j", 4, "copy"), txn=2)
    history.add("one", position("j", 2, "copy"), txn=3)
    history.add("probe", position("k", 4, "copy"), position("j", 2, "copy"))
    history.add("one", position("k", 6, "copy"), txn=4)
    history.add("two", position("j", 5, "copy"), txn=5)
    history.add("one", position("j", 5, "copy"), position("j", 6, "copy"), txn=4)
    history.add("probe", position("k", 6, "copy"), position("j", 5, "copy"))
    history.add("probe", position("k", 6, "copy"), position("j", 6, "copy"))


@shows("torn_progress")
def a_position_is_of_a_transaction_that_was_certainly_committed_before(history: Recorder) -> None:
    history.add("two", position("k", 4, "copy"), txn=2)
    history.add("one", assign("k", 0))
    history.add("one", position("k", 2, "copy"), txn=1)
    history.add("probe", position("k", 4, "copy"))


@shows()
def a_position_that_was_seen_before_the_last_transaction_is_not_the_last(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), txn=1)
    history.add("probe", position("k", 2, "copy"))
    history.add("copier", position("k", 4, "copy"), txn=2)


@shows()
def groups_have_positions_of_their_own(history: Recorder) -> None:
    history.add("copier", position("k", 2, "copy"), position("l", 7, "copy"), txn=1)
    history.add("adder", position("k", 3, "sum"), txn=2)
    history.add("probe", position("k", 3, "sum"), position("k", 2, "copy"), position("l", 7, "copy"))


@shows()
def a_position_whose_transaction_nobody_recorded_is_not_judged(history: Recorder) -> None:
    history.add("probe", position("k", 3, "copy"))
    history.add("probe", position("k", 5, "copy"))


# After doubt: where a process stands that nobody knows of lies between two places, and what is neither is found.


@shows("nonmonotonic_poll")
def a_process_goes_back_before_where_it_stood_before_a_transaction_in_doubt(history: Recorder) -> None:
    history.add("writer", send("k", 0, 0), send("k", 1, 1))
    history.add("reader", assign("k", 0), poll("k", 0, 0), txn=1)
    history.add("reader", poll("k", 1, 1), txn=2, status="info")
    history.add("reader", poll("k", 0, 0), txn=3)


@shows()
def a_process_reads_again_what_a_transaction_in_doubt_had_read(history: Recorder) -> None:
    history.add("writer", send("k", 0, 0), send("k", 1, 1))
    history.add("reader", assign("k", 0), poll("k", 0, 0), txn=1)
    history.add("reader", poll("k", 1, 1), txn=2, status="info")
    history.add("reader", poll("k", 1, 1), txn=3, status="info")
    history.add("reader", poll("k", 1, 1), txn=4)


@shows()
def where_a_process_began_in_doubt_nobody_knows_how_far_it_may_go_back(history: Recorder) -> None:
    history.add("writer", send("k", 0, 0), send("k", 1, 1))
    history.add("reader", poll("k", 1, 1), txn=2, status="info")
    history.add("reader", poll("k", 0, 0), txn=3)


@shows("nonmonotonic_poll")
def what_came_before_a_certain_step_says_nothing_of_the_lowest_place(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(4)])
    history.add("reader", assign("k", 0), poll("k", 0, 0))
    history.add("reader", poll("k", 1, 1), status="info")
    history.add("reader", assign("k", 3), poll("k", 3, 3))
    history.add("reader", poll("k", 2, 2))


@shows("nonmonotonic_poll")
def a_process_goes_back_behind_what_it_may_have_handled(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), *[poll("k", number, number) for number in range(5)])
    history.add("reader", poll("k", 5, 5), status="info")
    history.add("reader", poll("k", 1, 1))


@shows("poll_skip")
def how_far_a_process_went_without_an_answer_says_nothing_behind_a_certain_step(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(7)])
    history.add("reader", assign("k", 0), poll("k", 0, 0))
    history.add("reader", poll("k", 1, 1), status="info")
    history.add("reader", poll("k", 2, 2))
    history.add("reader", poll("k", 3, 3), txn=1, status="info")
    history.add("reader", poll("k", 6, 6), txn=2)
    history.add("judge", assign("k", 0), window("k", 0, 7), *[poll("k", number, number) for number in range(7)])


@shows("nonmonotonic_poll")
def inside_of_a_transaction_in_doubt_a_process_stands_nowhere(history: Recorder) -> None:
    """It stands behind all of it, or where it had stood before."""
    history.add("writer", *[send("k", number, number) for number in range(7)])
    history.add("reader", assign("k", 0), *[poll("k", number, number) for number in range(6)])
    history.add("reader", poll("k", 1, 1), poll("k", 2, 2), txn=2, status="info")
    history.add("reader", poll("k", 2, 2))


# What certainly did not happen says nothing, and what may have is no certainty.


@shows()
def a_seek_that_was_refused_moves_nothing(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), *[poll("k", number, number) for number in range(5)])
    history.add("reader", assign("k", 0), status="fail")
    history.add("reader", poll("k", 5, 5))


@shows("nonmonotonic_poll")
def a_seek_that_was_refused_excuses_nothing(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), *[poll("k", number, number) for number in range(5)])
    history.add("reader", assign("k", 0), status="fail")
    history.add("reader", poll("k", 0, 0))


@shows()
def whether_a_seek_without_an_answer_was_done_nobody_knows(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), poll("k", 0, 0))
    history.add("reader", assign("k", 4), status="info")
    history.add("reader", poll("k", 1, 1))


@shows()
def whoever_seeks_in_a_transaction_has_done_so_though_that_is_aborted(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), *[poll("k", number, number) for number in range(5)])
    history.add("reader", assign("k", 0), txn=1, status="fail")
    history.add("reader", poll("k", 0, 0))


@shows("poll_skip")
def who_was_refused_as_a_member_reads_as_before(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(6)])
    history.add("reader", assign("k", 0), poll("k", 0, 0))
    history.add("reader", subscribe(), status="fail")
    history.add("reader", poll("k", 5, 5))
    history.add("judge", assign("k", 0), window("k", 0, 6), *[poll("k", number, number) for number in range(6)])


@shows("lost")
def what_was_not_dropped_excuses_nothing(history: Recorder) -> None:
    history.add("writer", send("k", 1, 0), send("k", 2, 1))
    history.add("admin", gone("k", 0, 1), status="fail")
    history.add("reader", assign("k", 0), poll("k", 1, 2), window("k", 0, 2))


# One operation that begins anew.


@shows()
def what_lies_between_two_places_that_an_operation_was_assigned_it_did_not_ask_for(history: Recorder) -> None:
    history.add("writer", send("k", "a", 0), send("k", "b", 3), txn=1)
    history.add("other", send("k", "c", 5))
    history.add("reader", assign("k", 5), poll("k", 5, "c"), assign("k", 0), poll("k", 0, "a"))
    history.add("judge", assign("k", 0), poll("k", 0, "a"), poll("k", 3, "b"), poll("k", 5, "c"), window("k", 0, 6))


@shows("intermediate_read", "int_poll_skip")
def what_an_operation_hides_behind_the_place_that_it_was_assigned_last_is_hidden(history: Recorder) -> None:
    history.add("writer", send("k", "a", 0), send("k", "b", 3), txn=1)
    history.add("other", send("k", "c", 5))
    history.add("reader", assign("k", 5), poll("k", 5, "c"), assign("k", 0), poll("k", 0, "a"), poll("k", 5, "c"))
    history.add("judge", assign("k", 0), poll("k", 0, "a"), poll("k", 3, "b"), poll("k", 5, "c"), window("k", 0, 6))


# Positions that are not stable yet.


@shows()
def a_position_is_seen_before_the_transaction_that_gives_it_goes_on(history: Recorder) -> None:
    """That had told the coordinator already; it is committed behind its last operation."""
    history.add("writer", send("in", 1, 0))
    history.add("copier", poll("in", 0, 1, "g"), position("in", 1, "g"), txn=1)
    history.add("probe", log_end("in", 1))
    history.add("probe", position("in", 0, "g"), stable_end("in", 1))
    history.add("worker", send("out", 1, 0), txn=1)
    history.add("judge", assign("in", 0), poll("in", 0, 1), window("in", 0, 1))
    history.add("judge", assign("out", 0), poll("out", 0, 1), window("out", 0, 2))


@shows()
def where_a_group_had_stood_may_be_seen_until_the_marker_is_written(history: Recorder) -> None:
    """EndTxn is answered before: who asks without ``require_stable`` is told the position before it."""
    history.add("writer", *[send("k", number, number) for number in range(4)])
    history.add("probe", position("k", 0, "g"))
    history.add("copier", assign("k", 0), poll("k", 0, 0, "g"), poll("k", 1, 1, "g"), position("k", 2, "g"), txn=1)
    history.add("probe", position("k", 0, "g"))
    history.add("probe", position("k", 0, "g"))
    history.add("copier", poll("k", 2, 2, "g"), poll("k", 3, 3, "g"), position("k", 4, "g"), txn=2)
    history.add("probe", position("k", 4, "g"))


@shows()
def where_a_group_stood_while_a_transaction_was_under_way_is_seen_until_the_marker_is_written(
    history: Recorder,
) -> None:
    """The first of its operations had told the position before anybody saw where the group stands."""
    history.add("writer", *[send("k", number, number) for number in range(4)])
    history.add("copier", assign("k", 0), poll("k", 0, 0, "g"), poll("k", 1, 1, "g"), position("k", 2, "g"), txn=1)
    history.add("probe", position("k", 0, "g"))
    history.add("copier", send("out", 1, 0), txn=1)
    history.add("probe", position("k", 0, "g"))
    history.add("probe", position("k", 0, "g"))
    history.add("copier", poll("k", 2, 2, "g"), poll("k", 3, 3, "g"), position("k", 4, "g"), txn=2)
    history.add("probe", position("k", 4, "g"))
    history.add("judge", assign("out", 0), poll("out", 0, 1), window("out", 0, 2))


@shows("torn_progress", "torn_progress")
def where_a_group_had_stood_is_seen_again_behind_a_later_position(history: Recorder) -> None:
    history.add("writer", *[send("k", number, number) for number in range(3)])
    history.add("probe", position("k", 0, "g"))
    history.add("copier", assign("k", 0), poll("k", 0, 0, "g"), position("k", 1, "g"), txn=1)
    history.add("copier", poll("k", 1, 1, "g"), position("k", 2, "g"), txn=2)
    history.add("probe", position("k", 2, "g"))
    history.add("probe", position("k", 0, "g"))
    history.add("probe", position("k", 0, "g"))
    history.add("copier", poll("k", 2, 2, "g"), position("k", 3, "g"), txn=3)
    history.add("probe", position("k", 3, "g"))


# Attempts of which nobody knows which was committed.


@shows()
def a_record_that_two_attempts_may_have_written_was_perhaps_not_its_own(history: Recorder) -> None:
    history.add("one", send("k", 1), poll("k", 0, 1), txn=2, status="info")
    history.add("other", send("k", 1), txn=1, status="info")
    history.add("judge", assign("k", 0), poll("k", 0, 1), window("k", 0, 4))


@shows("precommitted_read")
def a_transaction_that_failed_had_read_its_own_record(history: Recorder) -> None:
    history.add("one", send("k", 1), poll("k", 0, 1), txn=1, status="fail")


@shows("precommitted_read")
def a_transaction_reads_its_own_record_that_it_sent_twice(history: Recorder) -> None:
    history.add("one", send("k", 1), send("k", 1), poll("k", 0, 1), txn=1)


@shows("precommitted_read")
def a_transaction_reads_at_its_own_place_what_another_may_have_sent_as_well(history: Recorder) -> None:
    history.add("one", send("k", 1, 0), poll("k", 0, 1), txn=2, status="info")
    history.add("other", send("k", 1), txn=1, status="info")


# The edge of what an offset can be.


@shows("lost", "unseen")
def a_record_at_the_highest_offset_is_the_last_one_that_can_be(history: Recorder) -> None:
    history.add("writer", send("k", 1, 2**43 - 1))
    history.add("writer", send("k", 2))
    history.add("reader", assign("k", 0), poll("k", 2**43 - 1, 1))
    history.add("reader", log_end("k", 1))


@shows("nonmonotonic_poll")
def a_process_that_goes_back_from_the_highest_offset_skips_nothing(history: Recorder) -> None:
    history.add("writer", send("i", 0, 0), send("k", 0, 0), send("k", 3, 3), send("k", 4, 2**43 - 1))
    history.add("reader", assign("k", 2**43 - 1), poll("k", 2**43 - 1, 4))
    history.add("reader", poll("k", 3, 3))
    history.add(
        "judge", *[poll("k", offset, value) for offset, value in [(0, 0), (3, 3), (2**43 - 1, 4)]], poll("i", 0, 0)
    )
