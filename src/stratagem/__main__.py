"""Runs the ``stratagem`` command as ``python -m stratagem``."""

import sys

from stratagem._src.cli import main

if __name__ == "__main__":
    sys.exit(main())
