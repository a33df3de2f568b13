"""The one error of sweeps."""


class SweepError(ValueError):
    """A sweep cannot be made, read or changed; the message is one sentence with the cure."""
