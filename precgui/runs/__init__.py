"""Recorded runs: the file, its writer and reader, the live run, comparison, diagnosis. No torch, no Qt."""
