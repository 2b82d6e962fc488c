"""Keras runs on JAX, also where one file of this folder is collected alone."""

import stratagem as sg

sg.keras  # noqa: B018  (chooses the backend when it is loaded)
