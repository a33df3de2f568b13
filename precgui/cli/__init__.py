"""The command line: one module per sub-command, `main` joins them."""
