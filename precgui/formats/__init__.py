"""Number formats as data, and exact arithmetic on them. numpy at most, no torch."""
