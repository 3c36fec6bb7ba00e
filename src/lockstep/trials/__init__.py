"""The trials of a sweep as recorded in their folders: the ledger, tables, and comparisons."""
