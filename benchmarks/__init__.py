"""What Lockstep costs, in ratios inside one run: `python -m benchmarks` measures all of it."""
