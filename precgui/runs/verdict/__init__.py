"""Verdicts on groups of runs: numbers in, one of four words out. Needs neither torch nor SciPy."""
