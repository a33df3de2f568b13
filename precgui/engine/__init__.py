"""What does the training. torch lives here; no Qt, no h5py."""
