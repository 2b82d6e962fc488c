"""``MultiWorkerMirroredStrategy`` in a process that no launcher has started."""

import pytest

import stratagem as sg


@pytest.mark.parametrize(
    "make",
    [
        sg.distribute.MultiWorkerMirroredStrategy,
        sg.distribute.experimental.MultiWorkerMirroredStrategy,
    ],
    ids=["current", "experimental"],
)
def test_resolver_without_a_cluster(make, monkeypatch):
    """Programs ask it whether they are the chief; the answer is that there is nobody else."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = make().cluster_resolver
    assert isinstance(resolver, sg.distribute.cluster_resolver.ClusterResolver)
    assert resolver.task_type is None
    assert resolver.task_id is None
    assert not resolver.cluster_spec()
    assert resolver.master() == ""
    assert resolver.num_accelerators() == {}
