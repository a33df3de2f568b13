"""TensorBoard event files, read and written."""
