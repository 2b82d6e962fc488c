"""Functions that are written line by line."""

import jax.numpy as jnp
import pytest

from stratagem._src.core.codegen import DUMP_VARIABLE, CodeWriter, listed


def test_values_blocks_and_lists():
    function = CodeWriter("clip(numbers)", low=2)
    function.write(f"{listed(['a', 'b', 'c'])} = numbers")
    high = function.named(5)
    for name in "abc":
        with function.block(f"if {name} > {high}:"):
            function.write(f"{name} = {high}")
        function.write(f"{name} = max({name}, low)")
    function.write(f"return {listed('abc')}")
    clip = function.compile()
    assert clip((1, 3, 9)) == [2, 3, 5]
    assert clip.__name__ == "clip"


def test_values_are_not_shared():
    first, second = (CodeWriter("get()", value=i) for i in range(2))
    for function in (first, second):
        function.write("return value")
    assert (first.compile()(), second.compile()()) == (0, 1)


def test_an_error_names_the_function():
    function = CodeWriter("divide(x)")
    function.write("return 1 / x")
    with pytest.raises(ZeroDivisionError) as caught:
        function.compile()(0)
    assert caught.traceback[-1].frame.code.path == "<divide>"


def test_the_source_is_written_to_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv(DUMP_VARIABLE, str(tmp_path / "new" / "code"))
    for divisor in (jnp.ones(2), 0):
        function = CodeWriter("divide(x)", rule=(ValueError, "sum"))
        function.write(f"return x / {function.named(divisor)}")
        divide = function.compile()
    first, second = sorted((tmp_path / "new" / "code").iterdir(), key=lambda path: path.name)
    assert first.read_text() == (
        "def divide(x):\n"
        "    return x / ArrayImpl_v1\n"
        "\n"
        "# rule: tuple of [builtins.ValueError, 'sum']\n"
        "# ArrayImpl_v1: ArrayImpl float32[2]\n"
    )
    with pytest.raises(ZeroDivisionError) as caught:
        divide(1)
    assert str(caught.traceback[-1].path) == str(second)
    assert str(caught.traceback[-1].statement).strip() == "return x / int_v1"


def test_a_directory_that_cannot_be_written_raises(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(DUMP_VARIABLE, str(tmp_path / "file"))
    function = CodeWriter("get()")
    function.write("return 1")
    with pytest.raises(FileExistsError, match="file"):
        function.compile()
