"""Work beside the window: child processes, engine tasks, background threads."""
