"""``python -m stratagem._src.cli`` runs ``stratagem``."""

import sys

from stratagem._src.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
