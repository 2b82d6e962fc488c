"""The tables that are written into pages when the site is built."""

import importlib.util
import re
from pathlib import Path

from stratagem._src.core.tensorflow_names import TRANSLATIONS

DOCS = Path(__file__).parents[2] / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("generated_tables", DOCS / "generated_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(table):
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
    assert len({len(cells) for cells in lines}) == 1
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def test_every_name_of_tensorflow_has_a_row():
    found = [name for name, _ in rows(generator().tensorflow_names())]
    assert sorted(found) == sorted(f"`tf.{name}`" for name in TRANSLATIONS)


def test_the_cost_of_sharding_is_that_of_the_page_of_benchmarks():
    text = re.sub(r"\s+", " ", (DOCS / "benchmarks.md").read_text())
    table = rows(generator().sharded_state_cost())
    assert len(table) == 9
    model = ""
    for name, sharding, at_rest, in_step, time in table:
        model = name or model
        measured = rf"{model} {sharding.strip('`')} {at_rest} {in_step} \d+ {time} x"
        assert re.search(measured, text), measured


def test_markers_are_replaced_and_each_table_has_a_page():
    tables = generator()
    used = []
    for page in DOCS.glob("*.md"):
        text = page.read_text()
        used += re.findall(r"<!-- table: (\w+) -->", text)
        assert "<!-- table:" not in tables.on_page_markdown(text, page=None)
    assert sorted(used) == sorted(tables.TABLES)
