"""Libraries that change the environment when they are first imported are loaded before the tests."""

import tensorboardX  # noqa: F401

import stratagem as sg

sg.keras  # noqa: B018
