"""Whether this machine can compile."""

import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
