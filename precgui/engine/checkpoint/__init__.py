"""Checkpoints: all that a run needs to go on after its process has ended, to the last bit."""
