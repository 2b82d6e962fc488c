"""Writes what the programs give with TensorFlow to ``results.json``; run it where TensorFlow is installed.

``python tests/programs/write_results.py``. Nothing of Stratagem is imported.
"""

import json

from running import PROGRAMS, RESULTS, path_of, run_as_script

if __name__ == "__main__":
    found = {program: run_as_script(path_of(program)) for program in PROGRAMS}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} programs, {RESULTS.stat().st_size / 1000:.0f} kB")
