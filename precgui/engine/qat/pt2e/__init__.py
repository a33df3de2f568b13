"""Quantisation-aware training by torchao's PT2E flow."""
