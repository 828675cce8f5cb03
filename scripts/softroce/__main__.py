"""`python -m scripts.softroce`: run a command in one or two emulated machines with Soft-RoCE."""

import sys

from ._run import main

if __name__ == "__main__":
    sys.exit(main())
