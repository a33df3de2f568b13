"""Snapshots of single steps: weights, batches and random state, with which the step can be made again."""
