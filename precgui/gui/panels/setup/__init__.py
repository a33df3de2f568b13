"""The Run panel: the configuration of a run."""
