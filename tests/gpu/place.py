"""Where the tests of this folder compute."""

from __future__ import annotations

import os

import torch

# GPU_TESTS_DEVICE=cpu rehearses them where there is no GPU: what only a GPU shows is left out.
DEVICE = os.environ.get("GPU_TESTS_DEVICE", "cuda:0")
REHEARSED = not DEVICE.startswith("cuda")
# GPU_TESTS_ALL=1 runs the whole tables, which take minutes; a part of each is in `make gpu`.
ALL = bool(os.environ.get("GPU_TESTS_ALL"))
IS_HERE = REHEARSED or torch.cuda.is_available()
