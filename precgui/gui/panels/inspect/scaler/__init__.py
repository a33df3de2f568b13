"""Inspect > Loss scale: other policies of the loss scaler over the gradients of a run."""
