"""Errors of the engine that the user can correct, each with one sentence."""


class EngineError(Exception):
    """The run cannot start or go on; the message names the thing and the cure."""


class Stopped(Exception):
    """The run was asked to stop before its first step."""
