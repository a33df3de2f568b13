"""Inspect: all views of one run, as tabs."""
