"""Why a precision saved little time or memory: the profile of a step stored with a run, and its waterfall."""
