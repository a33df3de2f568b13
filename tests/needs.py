"""Marks of tests that need something of the machine or of the user, each with the sentence that a skip says."""

from __future__ import annotations

import importlib.util
import os

import pytest

named_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
links = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
signals = pytest.mark.skipif(os.name != "posix", reason="this system has no signals of POSIX")
open_descriptors = pytest.mark.skipif(os.name != "posix", reason="files of this system have no descriptors of POSIX")
ordinary_user = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere"
)
babel = pytest.mark.skipif(importlib.util.find_spec("babel") is None, reason="Babel is not installed")
triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton for this system")
