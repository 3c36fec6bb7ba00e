"""The shard of each rank, and the collectives between ranks. Independent of data sets and models."""
