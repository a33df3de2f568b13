"""The operations of a replayed step of one run: a tab of Inspect on the side files that `precgui replay` writes."""
