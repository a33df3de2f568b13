"""Time and Memory of one run: tabs of Inspect on the profile that is kept beside it."""
