"""Quantisation-aware training: integer formats that a model learns to live with."""
