"""The training engine. torch is imported here; no Qt, no h5py."""
