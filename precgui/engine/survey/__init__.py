"""Every tensor of a stored model in every format, in one pass over its files; no torch."""
