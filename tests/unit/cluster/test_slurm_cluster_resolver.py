import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import (
    ClusterSpec,
    ClusterSpecError,
    EnvironmentVariableError,
    MissingVariableError,
    SlurmAllocationError,
    SlurmClusterResolver,
    expand_host_list,
    expand_tasks_per_node,
)

STEP = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "t02n[13,41,43]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}


@pytest.fixture
def set_variables(monkeypatch):
    def set_variables(variables, **changes):
        for variable, value in {**variables, **changes}.items():
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, value)

    return set_variables


@pytest.mark.parametrize(
    ("host_list", "hosts"),
    [
        ("n1", ["n1"]),
        ("n1,m2", ["n1", "m2"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("n[01-10]", [f"n{number:02}" for number in range(1, 11)]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[0,00,000]", ["n0", "n00", "n000"]),
        ("a[0-1]b[2-3]", ["a0b2", "a0b3", "a1b2", "a1b3"]),
        ("a[0-1]-ib.example", ["a0-ib.example", "a1-ib.example"]),
        ("[1-2]", ["1", "2"]),
        ("n[5-5]", ["n5"]),
    ],
)
def test_host_lists(host_list, hosts):
    assert expand_host_list(host_list) == hosts


@pytest.mark.parametrize(
    "host_list",
    [
        *["", ",", "a,", ",a", "n[", "n]", "n[1", "n1]", "n[]", "n[1-]", "n[-1]", "n[2-1]", "n 1"],
        *["n[a-b]", "n[1-2-3]", "n[[1]]", "n[1,,2]", "n[1-9n[1-9", "n[1-99999]"],
        *["n[0-999]m[0-999]", "n[1-60000],m[1-60000]"],
    ],
)
def test_malformed_host_lists_are_rejected(host_list):
    with pytest.raises(ClusterSpecError, match="host list"):
        expand_host_list(host_list)


@pytest.mark.parametrize(
    ("expression", "counts"),
    [("3", [3]), ("2(x3),1", [2, 2, 2, 1]), ("3(x2),2,1(x1)", [3, 3, 2, 1]), ("0,1", [0, 1])],
)
def test_tasks_per_node(expression, counts):
    assert expand_tasks_per_node(expression) == counts


@pytest.mark.parametrize(
    "expression", ["", "x", "2(3)", "2(x)", "2(x0)", "2x3", "1,", "-1", "1(x999999999)"]
)
def test_malformed_tasks_per_node_are_rejected(expression):
    with pytest.raises(ClusterSpecError, match="Tasks per node"):
        expand_tasks_per_node(expression)


prefixes = st.text("abcxyz-.", min_size=1, max_size=4)


@st.composite
def ranges(draw):
    """A bracket group as text, and the numbers it stands for."""
    texts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 4))
        first = draw(st.integers(0, 10**width - 1))
        last = first + draw(st.integers(0, 12))
        texts.append(
            str(first).zfill(width)
            if first == last
            else f"{str(first).zfill(width)}-{str(last).zfill(width)}"
        )
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return f"[{','.join(texts)}]", numbers


@st.composite
def host_lists(draw):
    texts, hosts = [], []
    for _ in range(draw(st.integers(1, 3))):
        prefix = draw(prefixes)
        text, names = prefix, [prefix]
        for _ in range(draw(st.integers(0, 2))):
            group, numbers = draw(ranges())
            suffix = draw(st.just("") | prefixes)
            text += group + suffix
            names = [name + number + suffix for name in names for number in numbers]
        texts.append(text)
        hosts += names
    return ",".join(texts), hosts


@given(host_lists())
def test_a_host_list_expands_to_the_hosts_it_was_made_from(made):
    text, hosts = made

    assert expand_host_list(text) == hosts


@given(st.text("n[]-,0123456789 ", max_size=20))
def test_any_host_list_is_expanded_or_rejected(text):
    try:
        hosts = expand_host_list(text)
    except ClusterSpecError:
        return
    assert all(hosts)
    assert not any(set(host) & set("[], ") for host in hosts)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5)), min_size=1, max_size=6))
def test_tasks_per_node_expand_to_the_counts_they_were_made_from(runs):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)

    assert expand_tasks_per_node(text) == [n for count, times in runs for n in [count] * times]


def test_tasks_of_a_node_listen_on_consecutive_ports(set_variables):
    set_variables(STEP)
    resolver = SlurmClusterResolver()

    assert resolver.cluster_spec() == ClusterSpec(
        {
            "worker": [
                "t02n13:8888",
                "t02n13:8889",
                "t02n41:8888",
                "t02n41:8889",
                "t02n43:8888",
            ]
        }
    )
    assert resolver.get_task_info() == ("worker", 3)
    assert resolver.master() == "grpc://t02n41:8889"
    assert (resolver.process_id, resolver.num_processes) == (3, 5)
    assert resolver.coordinator_address == "t02n13:8888"


def test_jobs_get_ranks_in_alphabetical_order(set_variables):
    set_variables(STEP)
    resolver = SlurmClusterResolver({"worker": 3, "ps": 2}, port_base=1337, rpc_layer=None)

    assert resolver.cluster_spec().as_dict() == {
        "ps": ["t02n13:1337", "t02n13:1338"],
        "worker": ["t02n41:1337", "t02n41:1338", "t02n43:1337"],
    }
    assert resolver.get_task_info() == ("worker", 1)
    assert resolver.master() == "t02n41:1338"


def test_nodes_keep_slurms_order_and_not_that_of_their_names(set_variables):
    set_variables(STEP, SLURM_STEP_NODELIST="n[9-11]")

    assert SlurmClusterResolver().cluster_spec().job_tasks("worker")[-1] == "n11:8888"


def test_ranks_that_go_round_the_nodes(set_variables):
    set_variables(STEP, SLURM_DISTRIBUTION="cyclic:block", SLURM_STEP_NODELIST="n[1-3]")

    assert SlurmClusterResolver().cluster_spec().job_tasks("worker") == [
        "n1:8888",
        "n2:8888",
        "n3:8888",
        "n1:8889",
        "n2:8889",
    ]
    set_variables(STEP, SLURM_DISTRIBUTION="plane=2")
    with pytest.raises(SlurmAllocationError, match=r"SLURM_DISTRIBUTION.*got 'plane=2'"):
        SlurmClusterResolver().cluster_spec()


def test_the_step_comes_before_the_job(set_variables):
    job = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "j[1-2]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
    }
    set_variables(job)
    assert SlurmClusterResolver().cluster_spec().as_dict() == {"worker": ["j1:8888", "j2:8888"]}
    set_variables({**job, **STEP})
    assert SlurmClusterResolver().num_processes == 5


def test_tasks_per_node_can_be_given(set_variables):
    set_variables(STEP, SLURM_STEP_TASKS_PER_NODE=None, SLURM_STEP_NODELIST="n[1-2]")
    jobs = {"worker": 4}

    assert SlurmClusterResolver(jobs, tasks_per_node=2).num_processes == 4
    given_by_host = SlurmClusterResolver(jobs, tasks_per_node={"x": 1, "a": 3})
    assert given_by_host.cluster_spec().job_tasks("worker")[:2] == ["x:8888", "a:8888"]
    with pytest.raises(MissingVariableError, match="pass tasks_per_node"):
        SlurmClusterResolver().cluster_spec()


def test_it_follows_the_environment(set_variables):
    set_variables(STEP)
    resolver = SlurmClusterResolver()

    assert resolver.task_id == 3
    set_variables(STEP, SLURM_PROCID="4")
    assert resolver.task_id == 4


@pytest.mark.parametrize(
    ("variables", "settings", "per_task", "ids"),
    [
        ({}, {}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, {}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, {}, {"GPU": 2}, (2, 3)),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {}, {"GPU": 2}, (2, 3)),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "2,3"}, {}, {"GPU": 2}, None),
        ({"SLURM_GPUS_ON_NODE": "1"}, {}, {}, ()),
        ({}, {"gpus_per_node": 4}, {"GPU": 2}, (2, 3)),
        ({}, {"gpus_per_node": 4, "gpus_per_task": 1}, {"GPU": 1}, (1,)),
        ({}, {"gpus_per_node": 4, "auto_set_gpu": False}, {"GPU": 2}, None),
    ],
)
def test_the_gpus_of_a_task(set_variables, variables, settings, per_task, ids):
    set_variables({**STEP, **variables})
    resolver = SlurmClusterResolver(**settings)

    assert resolver.num_accelerators() == per_task
    assert resolver.local_device_ids == ids


def test_more_than_slurm_allocated_is_rejected(set_variables):
    set_variables(STEP)

    with pytest.raises(SlurmAllocationError, match="2 tasks with 3 each and 4 GPUs"):
        SlurmClusterResolver(gpus_per_node=4, gpus_per_task=3).num_accelerators()
    with pytest.raises(SlurmAllocationError, match=r"got 7 in .* and 5 on the nodes"):
        SlurmClusterResolver({"ps": 1, "worker": 6}).cluster_spec()
    with pytest.raises(RuntimeError):
        SlurmClusterResolver({"ps": 1}).get_task_info()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SLURM_PROCID", "5", "below 5"),
        ("SLURM_PROCID", None, "not set. Start the program with srun"),
        ("SLURM_STEP_NODELIST", "n[", "list of nodes"),
        ("SLURM_STEP_NODELIST", "n1,n1,n1", "every node once"),
        ("SLURM_STEP_NODELIST", None, "not set"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(y2)", "counts of tasks"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,1", "each of 3 nodes"),
        ("SLURM_STEP_TASKS_PER_NODE", "999999999(x3)", "at most"),
        ("SLURM_STEP_NODELIST", "n!,m,o", "list of nodes"),
        ("SLURM_STEP_NUM_TASKS", "many", "number of tasks"),
        ("SLURM_STEP_NUM_TASKS", "6", "tasks on the nodes, 5"),
        ("SLURM_GPUS_ON_NODE", "two", "number of GPUs"),
    ],
)
def test_a_wrong_variable_is_named(set_variables, variable, value, said):
    set_variables(STEP, **{variable: value})
    resolver = SlurmClusterResolver()

    with pytest.raises(EnvironmentVariableError, match=f"^{variable} must hold .*{said}"):
        _ = (resolver.cluster_spec(), resolver.process_id, resolver.local_device_ids)


values = st.one_of(
    st.integers(-1, 9).map(str),
    st.sampled_from(["", "n[1-3]", "1(x3)", "9" * 30, "n[1-65536]", "100(x60000)", "²"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=10),
)


@given(data=st.data())
def test_any_values_are_understood_or_rejected(data):
    changed = {
        variable: data.draw(st.just(value) | values, label=variable)
        for variable, value in STEP.items()
    }
    with mock.patch.dict(os.environ, changed):
        resolver = SlurmClusterResolver()
        rejected = None
        try:
            number, size = resolver.process_id, resolver.num_processes
        except EnvironmentVariableError as error:
            rejected = str(error).split()[0]
    assert rejected in STEP or 0 <= number < size
