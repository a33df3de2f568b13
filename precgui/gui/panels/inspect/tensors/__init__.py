"""The Tensors panel: exponent histograms and the what-if of a recorded run."""
