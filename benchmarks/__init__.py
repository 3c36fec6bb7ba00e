"""What Lockstep costs, in ratios inside one run: `python -m benchmarks` measures all of it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
