"""``PythonProgram``: the script or module that every task runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError

__all__ = ["PythonProgram"]


@dataclass(frozen=True)
class PythonProgram:
    """The script or module that every task runs, and its arguments.

    >>> from stratagem._src.launcher.python_program import PythonProgram
    >>> PythonProgram("my_package.train", ("--lr", "0.1"), is_module=True).command("python")
    ('python', '-m', 'my_package.train', '--lr', '0.1')
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def command(self, interpreter: str) -> tuple[str, ...]:
        """Returns the command line that runs the program with an interpreter."""
        module = ("-m",) if self.is_module else ()
        return (interpreter, *module, self.name, *self.arguments)

    def check_here(self) -> None:
        """Raises ``LaunchError`` if the program is a script that does not exist on this machine."""
        if not self.is_module and not Path(self.name).is_file():
            raise LaunchError(
                f"PROGRAM must be a Python script that exists, got {self.name!r}. "
                "Use -m for a module."
            )

    @property
    def short_name(self) -> str:
        """The default name of a job with this program: the last part of the program's name."""
        return self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem
