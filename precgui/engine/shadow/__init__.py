"""The shadow of one training step: the same step in FP64 beside it, and the share of each operation in its error."""
