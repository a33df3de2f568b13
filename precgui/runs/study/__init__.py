"""Groups of runs beside a baseline: figures, whether they may be compared, statistics, verdicts, an answer."""
