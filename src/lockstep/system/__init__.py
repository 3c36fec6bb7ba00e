"""The machine and this process: signals, terminal, memory of cores and devices, packages. Independent of runs."""
