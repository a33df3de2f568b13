"""The Compare panel: runs against a baseline."""
