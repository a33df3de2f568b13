"""Detection of the machine and its present readings. No Qt; torch only where a function says so, never at import."""
