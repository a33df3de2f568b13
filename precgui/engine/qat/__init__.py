"""Quantisation-aware training: weights and inputs rounded to integers in the forward pass."""
