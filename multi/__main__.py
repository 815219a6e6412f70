"""`python -m multi`: the command line."""

import sys

from multi.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
