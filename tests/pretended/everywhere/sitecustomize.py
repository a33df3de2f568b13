"""Python imports this first where its folder is on PYTHONPATH: each process that a command starts computes, too."""

import os

if os.environ.get("PRETENDED_NUMBERS"):
    from tests.pretended import collectives, host_math

    host_math.install()
    host_math.install_compiled()
    collectives.install()
