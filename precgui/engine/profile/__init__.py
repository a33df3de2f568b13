"""Time and memory of a training step by operation, from torch.profiler, the allocator and the dispatcher."""
