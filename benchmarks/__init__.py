"""Measure what the pages of the docs report.

Each module stores its figures in the file of a section of docs/results.md.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAIN = [sys.executable, str(ROOT / "train.py")]
# of a command that is measured: Python keeps its compiled files, even if this process disabled that
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
