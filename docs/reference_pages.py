"""Makes pages when the site is built: the reference, and the one for contributors.

A hook of MkDocs: every name in ``__all__`` of a public module appears, with its docstring.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

MODULES = (
    "stratagem",
    "stratagem.autograph",
    "stratagem.autograph.experimental",
    "stratagem.bitwise",
    "stratagem.compat",
    "stratagem.compat.v1",
    "stratagem.compat.v1.gfile",
    "stratagem.compat.v1.logging",
    "stratagem.config",
    "stratagem.config.experimental",
    "stratagem.config.optimizer",
    "stratagem.config.threading",
    "stratagem.data",
    "stratagem.data.experimental",
    "stratagem.debugging",
    "stratagem.distribute",
    "stratagem.distribute.cluster_resolver",
    "stratagem.distribute.coordinator",
    "stratagem.distribute.experimental",
    "stratagem.distribute.experimental.coordinator",
    "stratagem.distribute.experimental.rpc",
    "stratagem.distribute.partitioners",
    "stratagem.dtypes",
    "stratagem.errors",
    "stratagem.image",
    "stratagem.integrations",
    "stratagem.integrations.ray",
    "stratagem.io",
    "stratagem.io.gfile",
    "stratagem.linalg",
    "stratagem.lookup",
    "stratagem.lookup.experimental",
    "stratagem.math",
    "stratagem.metrics",
    "stratagem.nest",
    "stratagem.nn",
    "stratagem.profiler",
    "stratagem.profiler.experimental",
    "stratagem.random",
    "stratagem.random.experimental",
    "stratagem.saved_model",
    "stratagem.sparse",
    "stratagem.strings",
    "stratagem.summary",
    "stratagem.summary.experimental",
    "stratagem.sysconfig",
    "stratagem.test",
    "stratagem.testing",
    "stratagem.tpu",
    "stratagem.tpu.experimental",
    "stratagem.train",
    "stratagem.version",
)

# Pages with nearly every word in them: a search for a concept should find the page that explains it.
_SEARCHED_LAST = (
    "reference/",
    "architecture.md",
    "benchmarks.md",
    "contributing.md",
    "tensorflow_names.md",
    "walks.md",
)


def on_config(config: Any) -> Any:
    """Puts the pages into the navigation, in place of their folder."""
    pages = ["reference/index.md", *({name: f"reference/{name}.md"} for name in MODULES)]
    [reference] = [part["Reference"] for part in config.nav if "Reference" in part]
    place = next(i for i, part in enumerate(reference) if "API" in part)
    reference[place] = {"API": pages}
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, and one that lists them."""
    listed = ["# Reference", "", "Every public name, by the module that has it.", ""]
    for name in MODULES:
        module = importlib.import_module(name)
        uri = f"reference/{name}.md"
        files.append(File.generated(config, uri, content=_page(name, module)))
        summary = inspect.getdoc(module).splitlines()[0]
        listed.append(f"- [`{name}`]({name}.md): {summary}")
    files.append(File.generated(config, "reference/index.md", content="\n".join(listed) + "\n"))
    files.append(File.generated(config, "contributing.md", content=_contributing()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to the page for contributors here, and ranks the guide before the reference in searches."""
    if page.file.src_uri.startswith(_SEARCHED_LAST):
        page.meta["search"] = {"boost": 0.2}
    return markdown.replace("](../CONTRIBUTING.md", "](contributing.md")


def symbols(module: Any) -> list[str]:
    """Returns the names of a module that are classes, functions or values, and not modules."""
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


def _contributing() -> str:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    return text.replace("](docs/", "](").replace("[CHANGELOG.md](CHANGELOG.md)", "`CHANGELOG.md`")


def _page(name: str, module: Any) -> str:
    lines = [f"# {name}", "", inspect.getdoc(module), ""]
    for symbol in symbols(module):
        found = getattr(module, symbol)
        if _is_written_out(found):
            lines += [f"::: {name}.{symbol}", ""]
        else:
            about = f"`{found!r}`" if not inspect.isclass(found) else _first_line(found)
            lines += [f"## {name}.{symbol} {{ #{name}.{symbol} }}", "", about, ""]
    return "\n".join(lines)


def _is_written_out(found: Any) -> bool:
    """Returns whether the source has a class or function of this, with a docstring."""
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return False
    try:
        inspect.getsource(found)
    except (OSError, TypeError):  # made while the program runs, as messages of protobuf are
        return False
    return found.__module__.startswith("stratagem.")


def _first_line(found: type) -> str:
    return (inspect.getdoc(found) or f"A message of `{found.__module__}`.").splitlines()[0]
