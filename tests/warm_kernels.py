"""Loads the compiled loops that every recorded training needs, when it is imported: 1.5 seconds of CPU time.

The process whose forks are the processes of tests imports it last, see `tests.warm_children`. What it has then is left
out of every search for garbage: a search in a fork would copy all of it, and one at the end of an interpreter, too.
"""

import atexit
import gc

import torch

from precgui.engine.telemetry.backends import stats_backend_for

stats_backend_for(torch.device("cpu"))
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # libraries complain of leaks otherwise
