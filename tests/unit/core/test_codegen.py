"""Functions that are written line by line."""

import pytest

from stratagem._src.core.codegen import CodeWriter, listed


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
