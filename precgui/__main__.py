"""`python -m precgui` is `precgui`, such as for `torchrun -m`."""

import sys

from precgui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
