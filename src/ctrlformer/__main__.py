"""`python -m ctrlformer` is the command `ctrlformer`."""

import sys

from ctrlformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
