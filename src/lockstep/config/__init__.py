"""From a command line to a checked configuration: composed by Hydra, typed by a schema, refused with its hints."""
