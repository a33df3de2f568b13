"""Time and memory of a training step taken apart: what torch.profiler, the allocator and the dispatcher tell."""
