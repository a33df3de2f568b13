"""The recorded statistics of tensors: rows, pictures, what-if."""
