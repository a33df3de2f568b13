"""Inspect > Formats: a scanned model, every tensor in every format."""
