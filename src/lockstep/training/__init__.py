"""The work of every rank: training, evaluation and prediction, from a configuration to the last collective."""
