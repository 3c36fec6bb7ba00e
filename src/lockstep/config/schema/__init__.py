"""The keys of a configuration: types, ranges, scopes, and names near to unknown ones."""
