"""Keras is loaded before the tests: it changes the environment when it is first imported."""

import stratagem as sg

sg.keras  # noqa: B018
