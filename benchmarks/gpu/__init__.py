"""Everything that needs a GPU, for a machine that is rented for minutes: `python -m benchmarks.gpu`, docs/gpu.md."""
