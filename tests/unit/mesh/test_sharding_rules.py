"""``ShardingRules``: which rule applies, and what is refused. No devices."""

import pytest
from jax.sharding import PartitionSpec

from stratagem._src.mesh.sharding_rules import ShardingRules, check_layout

AXES = {"fsdp": 2, "tensor": 4}


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("decoder/attention/kernel", "attention.*kernel"),
        ("decoder/mlp/kernel", "kernel$"),
        ("decoder/mlp/kernel_norm", None),
    ],
)
def test_the_first_rule_that_is_found_in_the_path_applies(path, rule):
    rules = ShardingRules([("attention.*kernel", ("fsdp",)), ("kernel$", ("tensor",))], axes=AXES)
    assert rules.rule_of(path) == rule


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ((None, "tensor"), ((), ("tensor",))),
        ([("fsdp", "tensor")], (("fsdp", "tensor"),)),
        (PartitionSpec("tensor", None), (("tensor",), ())),
    ],
)
def test_layouts_have_one_form(layout, expected):
    rules = ShardingRules({"w": layout}, axes=AXES)
    assert rules.layout_of("w", "w", (8, 8)) == expected
    assert rules == ShardingRules({"w": layout}, axes=AXES)
    assert rules != ShardingRules({"w": layout}, axes=AXES, batch="tensor")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ({"w": ("tenosr",)}, AXES),
            "may use the axes fsdp, tensor, data, got 'tenosr' in the rule 'w'",
        ),
        (({"w": ("fsdp", "fsdp")}, AXES), "Each axis can shard one dim"),
        (({"w": "fsdp"}, AXES), r"got the string 'fsdp' for the rule 'w'. Use \('fsdp',\)"),
        (({"(": ()}, AXES), "A sharding rule is a regular expression, got '\\('"),
        (({}, {}), "axes must be names and sizes"),
        (({}, {"fsdp": 0}), "axes must be names and sizes"),
        (({}, {"data": 2}), "got 'data', which is the axis of the replicas"),
        (({}, {"replica": 2}), "got 'replica', which is the axis of the replicas"),
    ],
)
def test_refused_rules(arguments, message):
    rules, axes = arguments
    with pytest.raises(ValueError, match=message):
        ShardingRules(rules, axes=axes)


@pytest.mark.parametrize(
    ("layout", "shape", "message"),
    [
        ((None, "tensor"), (8, 6), "got dim 1 of size 6 over tensor of size 4 for variable 'w'"),
        (("fsdp", None), (8,), "at most one entry for each dim"),
        (("data",), (8,), "replicated between replicas, got the axis of the replicas, 'data'"),
    ],
)
def test_refused_variables(layout, shape, message):
    rules = ShardingRules({"w": layout}, axes=AXES)
    with pytest.raises(ValueError, match=message):
        rules.layout_of("w", "w", shape)


def test_batches_are_sharded_over_fsdp_unless_told_otherwise():
    assert ShardingRules({}, axes=AXES).batch == ("fsdp",)
    assert ShardingRules({}, axes={"tensor": 2}).batch == ()
    assert ShardingRules({}, axes=AXES, batch=("fsdp", "tensor")).batch == ("fsdp", "tensor")
    with pytest.raises(ValueError, match="Leave it out"):
        ShardingRules({}, axes=AXES, batch="data")


def test_check_layout_accepts_what_divides():
    check_layout((8, 4), (("fsdp", "tensor"), ()), AXES, "x")
