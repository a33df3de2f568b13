"""Quantisation of trained models: its effect on held-out data, methods, plans, and files for other programs."""
