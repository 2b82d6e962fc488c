"""Every example in a docstring is run and gives what it shows."""

import doctest
import importlib
import pkgutil

import pytest
import tensorboardX  # noqa: F401  (it sets an environment variable when it is imported)

import stratagem

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(stratagem.__path__, "stratagem.")
    if not name.rpartition(".")[2].startswith("__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
