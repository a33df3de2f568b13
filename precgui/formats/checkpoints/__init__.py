"""Checkpoints of whole models, read as data: nothing in them is executed, nothing outside their folder is opened."""
