"""``python -m stratagem.cli`` is ``stratagem``."""

import sys

from stratagem.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
