"""Features of a training run, each a hook of its loop."""
