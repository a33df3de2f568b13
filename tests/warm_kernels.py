"""Loads the compiled loops that every recorded training needs, when it is imported: 1.5 seconds of CPU time.

The process whose forks are the children of tests imports it, see `tests.warm_children`.
"""

import torch

from precgui.engine.telemetry.backends import stats_backend_for

stats_backend_for(torch.device("cpu"))
