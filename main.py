"""`python main.py` is `precgui`."""

import sys

from precgui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
