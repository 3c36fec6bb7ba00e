"""The trials of a sweep as their folders tell them: the ledger, tables of results, comparisons."""
