"""python -m contract: see contract.cli.commands."""

import sys

from contract.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
