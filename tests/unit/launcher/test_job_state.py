"""The job's decisions: reports in, orders out."""

import signal

import pytest

from stratagem._src.cluster import Task
from stratagem._src.launcher.cluster_plan import NodeOffer
from stratagem._src.launcher.events import (
    DeadlinePassed,
    Finish,
    ForwardSignal,
    Interrupted,
    NodeJoined,
    NodeLost,
    NodeStopped,
    Rejoin,
    RestartNode,
    RestartTask,
    ShutdownNotice,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_exit import TaskExit

W0, W1, PS, CHIEF = Task("worker", 0), Task("worker", 1), Task("ps", 0), Task("chief", 0)
TERMINATE = [Stop(signal.SIGTERM, 5.0)]


def joined(node=0, **counts):
    shape = TaskCounts(**{"workers": 2, **counts})
    return NodeJoined(NodeOffer(node, "host", shape, tuple(range(1, 1 + shape.num_ports))))


def ended(task, returncode=0, by_launcher=False, output=""):
    return TaskEnded(TaskExit(task, returncode, by_launcher, output))


def running(num_nodes=1, max_restarts=0, max_worker_restarts=0, **counts):
    job = JobState(num_nodes, JobRules(max_restarts, max_worker_restarts))
    for node in range(num_nodes):
        orders = job.handle(joined(node, **counts))
    assert [type(order) for order in orders] == [Start]
    return job


def test_success():
    job = running()
    assert job.handle(ended(W0)) == []
    assert job.handle(ended(W1)) == TERMINATE
    assert job.handle(NodeStopped(0)) == [Finish(0)]


def test_servers_are_ended_after_success():
    job = running(workers=1, ps=1)
    assert job.handle(ended(W0)) == TERMINATE
    assert job.handle(ended(PS, -15, by_launcher=True)) == []
    assert job.handle(NodeStopped(0)) == [Finish(0)]


@pytest.mark.parametrize(("returncode", "exit_code"), [(3, 3), (-9, 137), (-15, 143)])
def test_first_failure_gives_the_exit_code(returncode, exit_code):
    job = running()
    assert job.handle(ended(W1, returncode, output="boom")) == TERMINATE
    assert job.handle(ended(W0, 7, output="consequence")) == []
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == exit_code
    assert "boom" in finish.message
    assert "worker 0 failed with exit code 7: consequence" in finish.message


def test_restarts_until_there_are_none_left():
    job = running(max_restarts=2)
    for attempt in (1, 2):
        assert job.handle(ended(W0, 1)) == TERMINATE
        [order] = job.handle(NodeStopped(0))
        assert order == Rejoin(attempt, "worker 0 failed with exit code 1")
        [start] = job.handle(joined())
        assert start.attempt == attempt
    job.handle(ended(W0, 4))
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 4


def test_success_after_a_restart_forgets_the_failure():
    job = running(max_restarts=1)
    job.handle(ended(W0, 1))
    job.handle(NodeStopped(0))
    job.handle(joined())
    job.handle(ended(W0))
    assert job.handle(ended(W1)) == TERMINATE
    assert job.handle(NodeStopped(0)) == [Finish(0)]


def test_a_worker_that_a_chief_directs_is_started_again_alone():
    job = running(ps=1, chief=True, max_worker_restarts=2)
    for _ in range(2):
        again = RestartTask(W0, "worker 0 was killed by SIGKILL")
        assert job.handle(ended(W0, -9)) == [again]
    assert job.handle(ended(W1, -9)) == [RestartTask(W1, "worker 1 was killed by SIGKILL")]
    assert job.handle(ended(W0, 5)) == TERMINATE
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 5


def test_a_server_that_a_chief_uses_is_started_again_alone():
    job = running(ps=1, chief=True, max_worker_restarts=1)
    assert job.handle(ended(PS, -9)) == [RestartTask(PS, "ps 0 was killed by SIGKILL")]
    assert job.handle(ended(PS, -9)) == TERMINATE


def test_a_chief_with_servers_is_started_again_alone_in_place_of_the_job():
    job = running(ps=1, chief=True, max_restarts=2)
    for _ in range(2):
        assert job.handle(ended(CHIEF, 1)) == [
            RestartTask(CHIEF, "chief 0 failed with exit code 1")
        ]
    assert job.handle(ended(CHIEF, 6)) == TERMINATE
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 6


def test_restarts_of_job_and_chief_are_counted_together():
    job = running(ps=1, chief=True, max_restarts=2)
    job.handle(ended(CHIEF, 1))
    job.handle(ended(PS, -9))
    assert job.handle(NodeStopped(0)) == [Rejoin(1, "ps 0 was killed by SIGKILL")]
    job.handle(joined(ps=1, chief=True))
    assert job.handle(ended(CHIEF, 1)) == TERMINATE


def test_an_announced_end_is_passed_on_and_prevents_a_restart():
    job = running(max_restarts=3)
    assert job.handle(ShutdownNotice(signal.SIGUSR1)) == [ForwardSignal(signal.SIGUSR1, (W0, W1))]
    job.handle(ended(W0, 42))
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 42


def test_an_announced_end_is_for_those_who_decide():
    job = running(ps=1, chief=True, max_restarts=3)
    assert job.handle(ShutdownNotice(signal.SIGUSR2)) == [ForwardSignal(signal.SIGUSR2, (CHIEF,))]
    assert job.handle(ended(CHIEF, 42)) == TERMINATE


def test_a_restart_of_a_worker_is_no_failure():
    job = running(ps=1, chief=True, max_worker_restarts=1)
    job.handle(ended(W0, -9))
    assert job.handle(ended(CHIEF)) == TERMINATE
    job.handle(ended(W0, -15, by_launcher=True))
    assert job.handle(NodeStopped(0)) == [Finish(0)]


@pytest.mark.parametrize(
    ("counts", "task"),
    [
        ({"ps": 1, "chief": True}, CHIEF),
        ({"ps": 1, "chief": True, "evaluator": True}, Task("evaluator", 0)),
        ({"ps": 1}, W0),
        ({"ps": 1}, PS),
        ({"chief": True}, W0),
        ({}, W0),
    ],
)
def test_no_other_task_is_started_again(counts, task):
    job = running(max_worker_restarts=5, **counts)
    assert job.handle(ended(task, -9)) == TERMINATE


def test_interrupt_passes_the_signal_on_and_prevents_a_restart():
    job = running(max_restarts=3)
    assert job.handle(Interrupted(signal.SIGINT)) == [Stop(signal.SIGINT, 5.0)]
    job.handle(ended(W0, 1))
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 130


def test_second_interrupt_kills():
    job = running()
    job.handle(Interrupted(signal.SIGINT))
    assert job.handle(Interrupted(signal.SIGINT)) == [Stop(signal.SIGKILL, 0.0)]


def test_interrupt_while_stopping_after_a_failure_prevents_a_restart():
    job = running(max_restarts=1)
    job.handle(ended(W0, 1))
    assert job.handle(Interrupted(signal.SIGTERM)) == [Stop(signal.SIGTERM, 5.0)]
    assert job.handle(NodeStopped(0))[0].exit_code == 143


def test_scheduler_that_signals_every_node_is_not_impatient():
    job = running()
    assert job.handle(Interrupted(signal.SIGTERM)) == TERMINATE
    assert job.handle(Interrupted(signal.SIGTERM)) == []
    assert job.handle(Interrupted(signal.SIGINT)) == [Stop(signal.SIGKILL, 0.0)]


def test_interrupt_while_waiting_for_nodes():
    job = JobState(2, JobRules())
    job.handle(joined(0))
    assert job.handle(Interrupted(signal.SIGTERM))[0].exit_code == 143


def test_a_job_waits_for_every_node():
    job = JobState(2, JobRules())
    assert job.handle(joined(1)) == []
    assert job.missing_nodes == [0]
    assert len(job.handle(joined(0))) == 1
    assert job.phase is JobPhase.RUNNING
    job.handle(ended(W1, 3))
    assert job.handle(NodeStopped(1)) == []
    assert job.handle(NodeStopped(0))[0].exit_code == 3


def test_deadline_names_the_missing_nodes():
    job = JobState(4, JobRules())
    job.handle(joined(0))
    job.handle(joined(2))
    [finish] = job.handle(DeadlinePassed(0))
    assert finish.exit_code == 1
    assert "node 1, node 3 did not" in finish.message


def test_deadline_of_an_earlier_attempt_means_nothing():
    job = running(max_restarts=1)
    assert job.handle(DeadlinePassed(0)) == []
    job.handle(ended(W0, 1))
    job.handle(NodeStopped(0))
    assert job.handle(DeadlinePassed(0)) == []


def test_node_lost_while_waiting_may_come_again():
    job = JobState(2, JobRules())
    job.handle(joined(1))
    assert job.handle(NodeLost(1)) == []
    assert job.handle(joined(0)) == []
    assert len(job.handle(joined(1))) == 1


def test_node_lost_while_running_ends_the_job():
    job = running(num_nodes=2)
    assert job.handle(NodeLost(1)) == TERMINATE
    [finish] = job.handle(NodeStopped(0))
    assert finish == Finish(1, "the launcher of node 1 is gone")


def test_node_lost_while_running_is_waited_for_if_restarts_are_left():
    job = running(num_nodes=2, max_restarts=1)
    job.handle(NodeLost(1))
    assert job.handle(NodeStopped(0)) == [Rejoin(1, "the launcher of node 1 is gone")]
    assert job.handle(joined(0)) == []
    assert job.missing_nodes == [1]


def test_node_lost_while_stopping_counts_as_stopped():
    job = running(num_nodes=2)
    job.handle(ended(W0, 3))
    assert job.handle(NodeStopped(0)) == []
    assert job.handle(NodeLost(1))[0].exit_code == 3


def test_impossible_cluster_finishes_with_wrong_use():
    job = JobState(2, JobRules(max_restarts=5))
    job.handle(joined(0, chief=True))
    [finish] = job.handle(joined(1, chief=True))
    assert finish.exit_code == 2
    assert "at most one chief" in finish.message


def test_unknown_report_is_rejected():
    with pytest.raises(TypeError, match="report must be one of"):
        JobState(1, JobRules()).handle("hello")


def of_two_nodes():
    """A chief and a server on node 0, a worker on node 1."""
    job = JobState(2, JobRules(max_worker_restarts=1), nodes_are_restarted=True)
    job.handle(joined(0, workers=0, chief=True, ps=1))
    job.handle(joined(1, workers=1))
    assert job.phase is JobPhase.RUNNING
    return job


def test_node_of_a_worker_may_go_and_come_back_to_its_address():
    job = of_two_nodes()
    assert job.handle(NodeLost(1)) == []
    assert job.expects(1)
    [order] = job.handle(joined(1, workers=1))
    assert isinstance(order, RestartNode)
    assert (order.node, order.start.plan.tasks[1]) == (1, (W0,))
    assert not job.expects(1)
    assert job.handle(NodeLost(1)) == TERMINATE  # it was started again once already


def test_node_that_comes_back_elsewhere_cannot_be_found_by_the_others():
    job = of_two_nodes()
    job.handle(NodeLost(1))
    elsewhere = NodeOffer(1, "another host", TaskCounts(), (9,))
    assert job.handle(NodeJoined(elsewhere)) == TERMINATE


def test_job_that_is_done_does_not_wait_for_a_node_that_is_away():
    job = of_two_nodes()
    job.handle(NodeLost(1))
    assert job.handle(ended(Task("chief", 0))) == TERMINATE
    [finish] = job.handle(NodeStopped(0))
    assert finish.exit_code == 0


def test_node_that_stays_away_is_a_failure():
    job = of_two_nodes()
    assert job.handle(NodeLost(1)) == []
    assert job.handle(NodeLost(1, for_good=True)) == TERMINATE
    [finish] = job.handle(NodeStopped(0))
    assert (finish.exit_code, finish.message) == (1, "the launcher of node 1 is gone")


def test_node_that_nobody_starts_again_is_a_failure_at_once():
    job = JobState(2, JobRules())
    job.handle(joined(0, workers=0, chief=True, ps=1))
    job.handle(joined(1, workers=1))
    assert job.handle(NodeLost(1)) == TERMINATE


def elastic(num_nodes=3, min_workers=2, **rules):
    """A worker on each of some nodes."""
    job = JobState(num_nodes, JobRules(min_workers=min_workers, **rules))
    for node in range(num_nodes):
        orders = job.handle(joined(node, workers=1))
    assert [type(order) for order in orders] == [Start]
    return job


def test_elastic_job_goes_on_without_a_node_and_lets_it_come_back_elsewhere():
    job = elastic()
    assert not job.expects(2)
    assert job.handle(NodeLost(2)) == []
    assert job.expects(2)
    offer = NodeOffer(2, "another", TaskCounts(workers=1), (9,))
    [order] = job.handle(NodeJoined(offer))
    assert isinstance(order, RestartNode)
    assert order.start.plan.cluster == {"worker": ["host:1", "host:1", "another:9"]}
    assert order.start.plan.tasks[2] == (Task("worker", 2),)
    assert not job.expects(2)
    for task in (W0, W1):
        job.handle(ended(task))
    # One that has come back may have come too late, and is not waited for.
    assert job.phase is JobPhase.STOPPING


def test_elastic_job_ends_without_a_node_that_stays_away():
    job = elastic()
    job.handle(NodeLost(1))
    assert job.handle(ended(W0)) == []
    assert job.handle(ended(Task("worker", 2))) == TERMINATE
    assert job.handle(NodeStopped(0)) == []
    assert job.handle(NodeStopped(2)) == [Finish(0)]


def test_elastic_job_with_too_few_nodes_is_started_again():
    job = elastic(max_restarts=1)
    assert job.handle(NodeLost(1)) == []
    assert job.handle(NodeLost(2)) == TERMINATE
    [order] = job.handle(NodeStopped(0))
    assert isinstance(order, Rejoin)
    assert job.missing_nodes == [0, 1, 2]


def test_elastic_job_starts_with_enough_nodes_when_the_time_is_over():
    job = JobState(3, JobRules(min_workers=2))
    job.handle(joined(0, workers=1))
    job.handle(joined(2, workers=1))
    [order] = job.handle(DeadlinePassed(0))
    assert isinstance(order, Start)
    assert order.plan.tasks == {0: (W0,), 2: (W1,)}
    [order] = job.handle(joined(1, workers=1))
    assert isinstance(order, RestartNode)
    assert order.start.plan.tasks == {0: (W0,), 2: (W1,), 1: (Task("worker", 2),)}


def test_elastic_job_does_not_start_with_too_few_nodes():
    job = JobState(3, JobRules(min_workers=2))
    job.handle(joined(0, workers=1))
    [finish] = job.handle(DeadlinePassed(0))
    assert finish.exit_code == 1
    assert "node 1, node 2 did not" in finish.message
