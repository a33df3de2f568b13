"""Plots that stay exact and fluid up to millions of points."""
