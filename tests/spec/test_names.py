"""Every name of ``tf.distribute`` is here, and takes the arguments that its documentation says."""

import ast
import inspect
from pathlib import Path

import pytest

import stratagem as tf

NAMES = [
    line
    for line in Path(__file__).with_name("names.txt").read_text().splitlines()
    if not line.startswith("#")
]

# Parameters with another default than the documented one: what it is here.
OTHER_DEFAULTS = {
    ("distribute.HierarchicalCopyAllReduce", "num_packs"): "None",  # as many as are fastest
    ("distribute.NcclAllReduce", "num_packs"): "None",  # likewise
    ("distribute.Strategy.reduce", "axis"): "None",  # need not be said
    ("TensorShape", "dims"): "()",
    ("distribute.ParameterServerStrategy", "cluster_resolver"): "None",  # from TF_CONFIG
    ("distribute.experimental.ParameterServerStrategy", "cluster_resolver"): "None",
}


def find(name):
    """Returns what a dotted name is (of an attribute its type), and the class that has it, if one does."""
    found, owner = tf, None
    for part in name.split("."):
        owner = found if inspect.isclass(found) else None
        if owner is not None and part not in dir(owner):
            found = owner.__annotations__[part]
        else:
            found = inspect.getattr_static(owner, part) if owner else getattr(found, part)
    return found, owner


def parameters_of(documented):
    """Returns the names of the parameters, with the text of their defaults."""
    arguments = ast.parse(f"def f({documented}): pass").body[0].args
    names = [argument.arg for argument in arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [
        ast.unparse(default) for default in arguments.defaults
    ]
    return dict(zip(names, defaults, strict=True))


def text_of(default):
    if default is inspect.Parameter.empty:
        return None
    return str(default) if hasattr(default, "name") else repr(default)


@pytest.mark.parametrize("line", NAMES)
def test_name(line):
    kind, _, rest = line.partition(" ")
    name, _, documented = rest.removesuffix(")").partition("(")
    found, owner = find(name)
    if kind == "module":
        assert inspect.ismodule(found)
    elif kind == "property":
        assert isinstance(found, property | str)
    elif kind == "class":
        assert inspect.isclass(found)
    if "(" not in line:
        return
    if isinstance(found, staticmethod | classmethod):
        found = found.__get__(None, owner)
    taken = dict(inspect.signature(found).parameters)
    if kind == "method" and owner is not None:
        taken.pop("self", None)
    wanted = parameters_of(documented)
    positional = [
        n
        for n, parameter in taken.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)
    ]
    assert positional[: len(wanted)] == list(wanted)
    wanted |= {n: OTHER_DEFAULTS[name, n] for n in wanted if (name, n) in OTHER_DEFAULTS}
    assert {n: text_of(taken[n].default) for n in wanted} == wanted
    required = [n for n, parameter in taken.items() if parameter.default is parameter.empty]
    several = [n for n, p in taken.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert set(required) - set(several) <= set(wanted)
