"""``python -m monitorch`` is the command ``monitorch``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
