"""Formats for single layers: scores of each layer, plans within a budget of bits, and the losses measured with them."""
