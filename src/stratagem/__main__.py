"""``python -m stratagem`` is ``stratagem``."""

import sys

from stratagem._src.cli import main

if __name__ == "__main__":
    sys.exit(main())
