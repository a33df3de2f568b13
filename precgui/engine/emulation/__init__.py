"""Layers and products that compute in a format the device does not have."""
