"""What the command line tells a user who asked for something impossible."""


class UserError(Exception):
    """Bad input: one sentence that names the value and the cure; exit code 2, no traceback."""
