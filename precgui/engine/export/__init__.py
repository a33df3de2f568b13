"""A run as a plain PyTorch script."""
