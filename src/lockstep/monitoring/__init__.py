"""The commands status, runs and compare. They read run folders and import no torch."""
