"""Writes what TensorFlow gives for every case to ``results.json``; run it where TensorFlow is installed.

``python tests/unit/tensorflow_api/write_results.py``. Nothing of Stratagem is imported.
"""

from __future__ import annotations

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from compared_cases import call, fingerprint
from libraries import tensorflow
from stored_results import FILE, groups, written

if __name__ == "__main__":
    library = tensorflow()
    stored = {}
    for name, cases in groups().items():
        for number, made in enumerate(cases):
            found = call(library, made)
            key = f"{name}/{number}/{fingerprint(made)}"
            stored[key] = (
                found
                if isinstance(found, str)
                else [[written(a) for a in arrays] for arrays in found]
            )
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in stored.items())
    FILE.write_text("{\n" + lines + "\n}\n")
    print(f"{len(stored)} cases, {FILE.stat().st_size / 1000:.0f} kB")
