"""Documentation and code use the terms that users search for, and none of the retired ones."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# The page that owns a concept names it as users of JAX, PyTorch, DeepSpeed and Ray do.
TERMS = {
    "architecture": ["jaxpr", "shard_map", "buffer donation", "dead code", "partitioner"],
    "concepts": ["data parallelism", "DDP", "FSDP", "tensor parallelism"],
    "fault_tolerance": [
        "elastic training",
        "heartbeat",
        "preemption",
        "quorum",
        "network partition",
    ],
    "glossary": ["barrier", "world size", "rank", "reduce-scatter", "replicated"],
    "how_it_works": ["buffer donation", "membership server"],
    "launching": ["rank", "heartbeat", "SIGTERM", "supervisor"],
    "monitoring": ["throughput", "overhead", "straggler", "metrics", "OpenTelemetry"],
    "profiling": ["timeline", "overhead", "Perfetto"],
    "running": ["fused", "bucketing", "buffer donation", "barrier", "retracing", "call signature"],
    "sharded_state": [
        "FSDP",
        "ZeRO-1",
        "ZeRO-3",
        "DeepSpeed",
        "all-gather",
        "reduce-scatter",
        "tensor parallelism",
        "peak memory",
    ],
    "sharding_rules": ["GSPMD", "tensor parallelism", "HSDP", "MaxText", "LayoutMap", "FSDP"],
    "training": [
        "gradient accumulation",
        "gradient clipping",
        "learning-rate schedule",
        "mixed precision",
        "bfloat16",
        "bf16",
        "loss scaling",
    ],
    "workers": [
        "data parallelism",
        "DDP",
        "heartbeat",
        "barrier",
        "world size",
        "rank",
        "gradient compression",
        "bf16",
        "membership server",
    ],
}

TITLES = {
    "architecture": "Architecture",
    "fault_tolerance": "Fault tolerance and elasticity",
    "limits": "Limitations",
    "monitoring": "Monitoring",
    "sharded_state": "Sharded training (FSDP)",
    "walks": "Walks through the code",
    "workers": "Multi-host training",
}

# What was written once, as a regular expression, and what to write.
RETIRED = {
    r"go(es|ing)? on": "continues, resumes",
    r"anew": "again, restarts, re-forms",
    r"signs? of life": "heartbeat",
    r"meeting (point|process)": "membership server",
    r"strangers?": "unauthenticated peer",
    r"turned away|hung up on": "rejected",
    r"so (many|much)": "N, the number of",
    r"how manyth": "the index of",
    r"who(m)?ever": "any worker that, anyone who",
    r"(no|some|every)body": "no worker, a user, every task",
    r"in step(?! \d)": "synchronous, data-parallel",
    r"in parts(?!\.)": "sharded",
    r"(is|are|stay) whole|takes? (\w+ )?whole": "replicated, unsharded, full",
    r"travels? together": "fused, bucketed",
    r"(given|gives) away|lent": "donated, borrowed",
    r"beside": "next to, in addition to, in the background",
    r"damaged?": "corrupt",
    r"(falls?|is|are|only) silent|silence": "misses heartbeats",
    r"newcomers?|knocks?|council|succession": "joining worker, join request, peers, quorum",
    r"watching a job|who waits for whom": "monitoring, stragglers",
    r"as ever": "unchanged",
    r"(Keras|Orbax|JAX|optax)'(?!s\b)": "Keras `fit`, the Orbax format",
}

# Names of modules, classes and functions that were retired, and what they are called now.
RETIRED_NAMES = {
    r"caller|endpoint|conversation": "client, server, stream",
    r"parcel": "payload",
    r"tally|figures": "counter, metrics",
    r"guardian": "supervisor",
    r"knock|newcomer|council|succession|meeting": "join request, peer, quorum, barrier, membership",
    r"stranger|damaged?": "unauthenticated peer, corruption",
    r"in_parts|step_in_parts|lent": "sharded, borrowed",
    r"quick_call|straight_line": "fast path, codegen",
    r"(?<!at_)(?:most|least|largest|fewest)(?!_general)": "max, min",
    r"seconds_(to|between)": "timeout, interval",
}

# A file and a symbol, or a file, as the code has them today.
_NAMES_OF_CODE = re.compile(r"`[\w/]+\.py(?:: [\w.]+)?`")


@pytest.mark.parametrize(
    ("page", "term"), [(page, term) for page, terms in TERMS.items() for term in terms]
)
def test_the_page_of_a_concept_names_it(page, term):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert re.search(rf"\b{re.escape(term)}", " ".join(text.split()), re.IGNORECASE)


@pytest.mark.parametrize(("page", "title"), TITLES.items())
def test_titles_say_the_topic(page, title):
    assert (ROOT / "docs" / f"{page}.md").read_text().startswith(f"# {title}\n")
    assert f"  - {title}: {page}.md\n" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_retired_words_do_not_come_back(page):
    found = retired_words(page.read_text())
    assert not found, "\n".join(
        f"{page.name}:{line}: {word!r}: write {new}" for line, word, new in found
    )


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_code_uses_no_retired_words(file):
    found = [
        f"{file.name}:{first + line - 1}: {word!r}: write {new}"
        for first, text in prose(file.read_text())
        for line, word, new in retired_words(text)
    ]
    names = {file.stem}
    names |= set(re.findall(r"^\s*(?:class|def) (\w+)", file.read_text(), re.MULTILINE))
    names |= set(re.findall(r"^(_?[A-Z][A-Z_0-9]+)\b", file.read_text(), re.MULTILINE))
    found += [f"{file.name}: {name}: write {new}" for name, new in retired_names(names)]
    assert not found, "\n".join(found)


def test_a_retired_name_is_found():
    names = {"ClusterCaller", "_LARGEST_CHUNK", "almost_equal", "meeting_server", "SECONDS_TO_END"}
    found = {name for name, _ in retired_names(names)}
    assert found == names - {"almost_equal"}


def test_prose_is_comments_and_strings():
    text = 'x = 1  # one\ndef f():\n    """Two.\n\n    Three."""\n    return f"four {x}"\n'
    assert [text for _, text in prose(text)][:2] == ["# one", '"""Two.\n\n    Three."""']


def test_a_retired_word_is_found():
    text = (
        "The job goes on.\n`control_plane/peers.py: Council` is\nin step.\n"
        "What happens in step 3 goes one by one.\n"
    )
    assert [(line, word) for line, word, _ in retired_words(text)] == [
        (1, "goes on"),
        (3, "in step"),
    ]


def prose(code: str) -> Iterator[tuple[int, str]]:
    """Yields the comments and strings of a file, each with its first line."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def retired_names(names: set[str]) -> list[tuple[str, str]]:
    """Returns the names that contain a retired one as a word, and its replacement."""
    found = []
    for name in sorted(names):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        for retired, new in RETIRED_NAMES.items():
            if re.search(rf"(?:^|_)(?:{retired})(?:_|s?$)", words):
                found.append((name, new))
    return found


def retired_words(text: str) -> list[tuple[int, str, str]]:
    """Returns the line, the word and its replacement for every retired word in a text."""
    text = _NAMES_OF_CODE.sub("", text)
    found = []
    for retired, new in RETIRED.items():
        for match in re.finditer(rf"\b(?:{retired})(?<=\w|')(?!\w)", text, re.IGNORECASE):
            found.append((text.count("\n", 0, match.start()) + 1, match[0], new))
    return sorted(found)
