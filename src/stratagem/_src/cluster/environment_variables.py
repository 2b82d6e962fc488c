"""Reads environment variables, with errors that name the variable and its expected content."""

from __future__ import annotations

import os

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import (
    ClusterSpecError,
    EnvironmentVariableError,
    MissingVariableError,
)

__all__ = ["first_set", "is_set", "read_address", "read_integer", "read_text"]


def is_set(*variables: str) -> bool:
    """Returns whether all of the variables are set and not empty."""
    return all(os.environ.get(variable, "").strip() for variable in variables)


def first_set(*variables: str) -> str | None:
    """Returns the name of the first variable that is set and not empty, if any."""
    return next((variable for variable in variables if is_set(variable)), None)


def read_text(variable: str, should_hold: str, fix: str) -> str:
    """Returns the value of a variable; ``fix`` says what to do if it is not set."""
    if not is_set(variable):
        raise MissingVariableError(variable, should_hold, fix)
    return os.environ[variable].strip()


def read_integer(
    variable: str, should_hold: str, fix: str, *, minimum: int = 0, below: int | None = None
) -> int:
    """Returns the integer value of a variable, checked against its range."""
    text = read_text(variable, should_hold, fix)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise EnvironmentVariableError(variable, text, f"{should_hold}, as a whole number")
    number = int(text)
    if number < minimum or (below is not None and number >= below):
        limits = f"at least {minimum}" + ("" if below is None else f" and below {below}")
        raise EnvironmentVariableError(variable, text, f"{should_hold}, {limits}")
    return number


def read_address(variable: str, should_hold: str, fix: str) -> str:
    """Returns the ``host:port`` value of a variable."""
    text = read_text(variable, should_hold, fix)
    try:
        return str(Address.parse(text))
    except ClusterSpecError as error:
        raise EnvironmentVariableError(variable, text, f"{should_hold} ({error})") from None
