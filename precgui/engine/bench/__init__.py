"""Measured rates of a device in each format."""
