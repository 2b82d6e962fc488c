"""What the meeting point tells whom."""

import json

import pytest

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.membership_state import MembershipState, Send
from stratagem._src.control_plane.run_length import run_length_decode
from stratagem._src.control_plane.worker_status import (
    IDLE,
    WAITING,
    WorkerStatus,
    views_from_json,
)


def told(sends, key):
    return [(worker, message[key]) for worker, message in sends if key in message]


def views_at(board, now):
    """Returns what all are told of the workers, and who is told."""
    sends = json.loads(json.dumps(told(board.tick(now), "peers")))
    assert all(said == sends[0][1] for _, said in sends)
    return views_from_json(sends[0][1]), [worker for worker, _ in sends]


def test_start_is_told_to_all_when_the_last_one_comes():
    board = MembershipState(2)
    assert board.open({"service_port": 7}) == []
    assert told(board.join(1, 0.0), "start") == []
    assert told(board.join(0, 1.0), "start") == [(0, {"service_port": 7}), (1, {"service_port": 7})]


def test_start_is_told_when_it_is_known_after_the_last_one_came():
    board = MembershipState(2)
    board.join(0, 0.0)
    assert told(board.join(1, 0.0), "start") == []
    assert told(board.open({"hosted": True}), "start") == [
        (0, {"hosted": True}),
        (1, {"hosted": True}),
    ]


def test_everybody_hears_who_is_there():
    board = MembershipState(2)
    board.join(1, 0.0)
    views, hearers = views_at(board, 0.0)
    assert [view.absent for view in views] == [True, False]
    assert hearers == [1]


def test_views_tell_status_and_silence():
    board = MembershipState(3)
    for worker in range(3):
        board.join(worker, 0.0)
    board.receive(1, {"status": WorkerStatus(WAITING, 3, "step").to_json()}, 2.0)
    board.receive(2, {"status": WorkerStatus(IDLE, 3).to_json()}, 5.0)
    (first, second, third), _ = views_at(board, 5.9)
    assert (first.heartbeat_age, second.heartbeat_age, third.heartbeat_age) == (5, 3, 0)
    assert second.status == WorkerStatus(WAITING, 3, "step")
    assert third.status == WorkerStatus(IDLE, 3)


def test_a_broken_connection_is_not_a_goodbye():
    board = MembershipState(3)
    for worker in range(3):
        board.join(worker, 0.0)
    board.receive(1, {"leave": "done"}, 1.0)
    board.lose(1)
    board.lose(2)
    (_, left, gone), hearers = views_at(board, 1.0)
    assert hearers == [0]
    assert (left.left, left.gone) == ("done", True)
    assert (gone.left, gone.gone) == (None, True)


def test_who_comes_leaves_or_is_lost_is_news_until_all_are_told():
    board = MembershipState(2)
    for happens in (
        lambda: board.join(0, 0.0),
        lambda: board.join(1, 0.0),
        lambda: board.receive(1, {"leave": "done"}, 0.0),
        lambda: board.lose(1),
    ):
        assert not board.has_news
        happens()
        assert board.has_news
        board.tick(0.0)
    board.receive(0, {"status": WorkerStatus(WAITING, 3, "step").to_json()}, 0.0)
    assert not board.has_news


def test_what_a_thousand_workers_are_told_is_small():
    board = MembershipState(1024)
    sends = [send for worker in range(1024) for send in board.join(worker, 0.0)]
    assert sends == []
    for worker in range(1024):
        status = WorkerStatus((IDLE, WAITING)[worker % 3 == 0], 1000 + worker % 2, "train_step()")
        board.receive(worker, {"status": status.to_json()}, worker / 512)
    sends = board.tick(2.1)
    assert len({id(send.message) for send in sends}) == 1
    assert len(json.dumps(sends[0].message)) < 2048
    views, hearers = views_at(board, 2.1)
    assert views[1].status == WorkerStatus(IDLE, 1001, "train_step()")
    assert views[3].status == WorkerStatus(WAITING, 1001, "train_step()")
    assert hearers == list(range(1024))


def test_exchange_is_complete_when_all_have_given():
    board = MembershipState(2)
    board.join(0, 0.0)
    board.join(1, 0.0)
    assert board.receive(1, {"put": "a/1", "value": "one"}, 0.0) == []
    assert board.receive(0, {"put": "a/2", "value": "later"}, 0.0) == []
    message = {"exchanged": "a/1", "runs": [["zero", 1], ["one", 1]]}
    expected = [Send(0, message), Send(1, message)]
    assert board.receive(0, {"put": "a/1", "value": "zero"}, 0.0) == expected


def test_equal_values_travel_once_however_many_workers_say_them():
    def told_to_each(values):
        board = MembershipState(len(values))
        for worker in range(len(values)):
            board.join(worker, 0.0)
        for worker, value in enumerate(values):
            sends = board.receive(worker, {"put": "sizes/1", "value": value}, 0.0)
        assert [worker for worker, _ in sends] == list(range(len(values)))
        [text] = {json.dumps(message["runs"]) for _, message in sends}
        assert run_length_decode(json.loads(text)) == values
        return text

    assert len(told_to_each([[8, 3]] * 200)) <= len(told_to_each([[8, 3]] * 2)) + 2
    assert len(told_to_each([[8, 3]] * 100 + [None] * 100)) < 40
    assert told_to_each([1, None, 1]) == "[[1, 1], [null, 1], [1, 1]]"


def test_who_is_refused():
    board = MembershipState(2)
    board.join(1, 0.0)
    assert board.refusal(0, 2) is None
    assert "2 workers" in board.refusal(0, 3)
    assert "has already joined" in board.refusal(1, 2)
    assert "not in a cluster" in board.refusal(2, 2)


def test_over_when_the_last_one_has_gone_or_is_forgotten():
    board = MembershipState(2)
    assert not board.is_over(0.0)
    board.join(0, 0.0)
    board.join(1, 0.0)
    board.lose(0)
    assert not board.is_over(30.0)
    assert board.is_over(61.0)
    board.receive(1, {}, 70.0)
    assert not board.is_over(71.0)
    board.lose(1)
    assert board.is_over(71.0)


def test_silent_workers_keep_nothing_alive_when_the_leader_has_ended():
    board = MembershipState(2)
    board.join(0, 0.0)
    board.join(1, 0.0)
    board.lose(0)
    assert not board.is_over(8.0, leader_has_ended=True)
    assert board.is_over(9.0, leader_has_ended=True)
    assert not board.is_over(9.0)


def both_joined():
    board = MembershipState(2)
    board.join(0, 0.0)
    board.join(1, 0.0)
    return board


def test_a_part_that_is_withdrawn_is_not_kept():
    board = both_joined()
    for number in range(10):
        board.receive(0, {"put": f"a/{number}", "value": 1}, 0.0)
        board.receive(0, {"withdraw": f"a/{number}"}, 0.0)
    board.receive(0, {"withdraw": "never begun"}, 0.0)
    assert board.num_pending_gathers == 0
    # Others wait for it as before, and it can be given again.
    board.receive(1, {"put": "a/1", "value": 2}, 0.0)
    board.receive(0, {"withdraw": "a/1"}, 0.0)
    assert board.num_pending_gathers == 1
    assert told(board.receive(0, {"put": "a/1", "value": 3}, 0.0), "runs") == [
        (0, [[3, 1], [2, 1]]),
        (1, [[3, 1], [2, 1]]),
    ]


def test_what_is_told_of_a_comparison_does_not_grow_with_the_workers():
    lengths = []
    for num_workers in (2, 200):
        board = MembershipState(num_workers)
        for worker in range(num_workers):
            board.join(worker, 0.0)
        for worker in range(num_workers):
            entries = [[8, 3]] * 5 + [[worker, 3]]
            part = {"put": "a/1", "value": "batches", "entries": entries}
            sends = board.receive(worker, part, 0.0)
        assert [send.worker for send in sends] == list(range(num_workers))
        assert sends[0].message == {"exchanged": "a/1", "said": ["batches"], "common": 5}
        lengths.append(len(json.dumps(sends[0].message)))
    assert lengths[0] == lengths[1]


def test_nothing_is_kept_that_can_never_be_complete():
    for end in (lambda b: b.lose(1), lambda b: b.receive(1, {"leave": "done"}, 0.0)):
        board = both_joined()
        board.receive(0, {"put": "a/1", "value": 1}, 0.0)
        end(board)
        board.receive(0, {"put": "a/2", "value": 1}, 0.0)
        assert board.num_pending_gathers == 0


def test_exchanges_that_nobody_completes_have_a_limit():
    board = both_joined()
    for number in range(4096):
        board.receive(0, {"put": f"a/{number}", "value": 1}, 0.0)
    with pytest.raises(RendezvousError, match="4096 gathers wait"):
        board.receive(0, {"put": "one more", "value": 1}, 0.0)
    assert board.num_pending_gathers == 4096
