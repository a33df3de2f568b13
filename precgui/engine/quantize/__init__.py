"""Rounding of torch tensors to any number format."""
