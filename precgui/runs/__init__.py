"""What is kept of a run: the file, its writer and reader, the live run, comparison, diagnosis. No torch, no Qt."""
