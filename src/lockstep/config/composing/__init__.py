"""From overrides to a configuration as Hydra composes it, and the values of a sweep."""
