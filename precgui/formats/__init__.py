"""What the bits mean: the formats as data, exact arithmetic on them. numpy at most, no torch."""
