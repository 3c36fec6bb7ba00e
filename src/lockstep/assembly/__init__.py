"""The parts of a run on every rank: process group, device, data, network and Trainer."""
