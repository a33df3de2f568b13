"""Scans of stored models: kept as run files, read back without the weights."""
