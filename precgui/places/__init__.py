"""Places: machines that train for this one, each a command whose input and output carry frames."""
