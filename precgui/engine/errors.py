"""What can go wrong in the engine and is the user's to mend: one sentence each."""


class EngineError(Exception):
    """The run cannot start or go on; the message names the thing and the cure."""


class Stopped(Exception):
    """The run was asked to stop before its first step."""
