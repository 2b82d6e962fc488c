"""What is published works where it is installed: wheel and sdist, in clean environments.

``make release-check`` runs it. For each Python it makes an environment, installs the wheel (for the first
one also the sdist) without extras, and runs a program with it, away from the sources.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import importlib.resources
import sys
import numpy as np
import stratagem as sg

assert "site-packages" in sg.__file__, sg.__file__
assert (importlib.resources.files(sg) / "py.typed").is_file()
sg.config.set_num_cpu_devices(2)
strategy = sg.distribute.MirroredStrategy()
with strategy.scope():
    v = sg.Variable(np.float32(0), aggregation=sg.VariableAggregation.SUM)

@sg.function
def step(batch):
    return strategy.run(lambda x: v.assign_add(x.sum()), args=(batch,))

data = sg.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)).batch(4)
for batch in strategy.experimental_distribute_dataset(data):
    step(batch)
assert float(v.numpy()) == 28.0, v
checkpoint = sg.train.Checkpoint(v=v)
for ask, extra in (
    (lambda: sg.keras.Sequential, "keras"),
    (lambda: checkpoint.save("never written"), "checkpoint"),
):
    try:
        ask()
    except ImportError as error:
        assert f"stratagem[{extra}]" in str(error), error
    else:
        raise AssertionError(f"{extra} is installed")
print("stratagem", sg.__version__, "on Python", sys.version.split()[0])
"""


def main() -> None:
    """Checks a release of what is committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", help="interpreters, such as python3.11")
    options = parser.parse_args()
    versions = {python: version_of(python) for python in options.pythons}
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build(Path(folder))
        check_contents(wheel, sdist)
        for place, (python, version) in enumerate(versions.items()):
            for package in [wheel, sdist][: 2 if place == 0 else 1]:
                say(f"installing {package.name} for Python {version}")
                check_installed(python, package, Path(folder) / f"{version}{package.suffix}")
    say(f"{wheel.name} and {sdist.name} work on {', '.join(versions.values())}")


def version_of(python: str) -> str:
    """Returns the version of an interpreter; ends the program if there is none."""
    try:
        return output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            f"There is no {python} here. Install it, or give others: make release-check PYTHONS=…"
        )


def build(folder: Path) -> tuple[Path, Path]:
    """Builds what is committed, from a clean copy; returns wheel and sdist."""
    archive = folder / "committed.tar"
    run("git", "-C", ROOT, "archive", "--output", archive, "HEAD")
    sources = folder / "sources"
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    say("building")
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", sources, quiet=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Checks what is in the files, and that every place says the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    code = (ROOT / "src/stratagem/_src/core/version.py").read_text()
    assert f'__version__ = "{version}"' in code, f"version.py does not say {version}"
    assert re.search(r"^## \[Unreleased\]|^## \[" + re.escape(version), changelog(), re.M)
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/stratagem").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    committed = set(output("git", "-C", ROOT, "ls-files", "src/stratagem").splitlines())
    wanted = {name for name in sources if f"src/{name}" in committed}
    missing = wanted - names
    assert not missing, f"the wheel lacks {sorted(missing)}"
    others = {name for name in names - wanted if ".dist-info/" not in name}
    assert not others, f"the wheel has {sorted(others)} besides"
    with tarfile.open(sdist) as tar:
        shipped = {name.partition("/")[2] for name in tar.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        assert name in shipped, f"the sdist lacks {name}"


def changelog() -> str:
    """Returns the changelog."""
    return (ROOT / "CHANGELOG.md").read_text()


def check_installed(python: str, package: Path, folder: Path) -> None:
    """Installs a package into an environment of its own and runs the program there."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    run(own, "-m", "pip", "install", "--quiet", package)
    run(own, "-m", "pip", "check")
    run(own, "-W", "error", "-c", PROGRAM, cwd=folder)
    run(folder / "bin" / "stratagem", "--help", cwd=folder, quiet=True)


def run(*command: str | Path, cwd: Path | None = None, quiet: bool = False) -> None:
    """Runs a command; ends the program if it fails."""
    output = subprocess.DEVNULL if quiet else None
    code = subprocess.run([*map(str, command)], cwd=cwd, stdout=output, check=False).returncode
    if code:
        sys.exit(f"{' '.join(map(str, command[:4]))} … ended with {code}")


def output(*command: str | Path) -> str:
    """Returns what a command prints."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def say(text: str) -> None:
    """Shows how far it is."""
    print(f"release-check: {text}", flush=True)


if __name__ == "__main__":
    main()
