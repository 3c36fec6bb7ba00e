"""Signal, kill or freeze trainings and see their outcomes: `python -m benchmarks.faults`."""
