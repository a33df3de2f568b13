"""The Runs panel: the list of saved runs."""
