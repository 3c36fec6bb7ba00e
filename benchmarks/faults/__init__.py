"""What becomes of a training that is signalled, killed or frozen: `python -m benchmarks.faults` tries it."""
