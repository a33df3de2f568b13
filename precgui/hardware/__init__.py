"""What the machine is and what it reads now. No Qt; torch only where a function says so, never at import."""
