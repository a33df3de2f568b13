"""The error of replayed steps of one run: a tab of Inspect on the side files that `precgui replay` writes."""
