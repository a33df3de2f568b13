"""Child processes: how they are started, supervised and ended, and the code that runs inside."""
