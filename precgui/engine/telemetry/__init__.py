"""Statistics and exponent histograms of tensors while a model trains, within a time budget."""
