"""The commands that look at runs from outside: status, runs and compare. They read run folders and import no torch."""
