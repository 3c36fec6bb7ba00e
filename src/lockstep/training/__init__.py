"""What every rank does: trains, evaluates, predicts or measures, from a configuration to the last collective."""
