"""Why a precision did not pay off: the profile of a step kept beside a run, and the account that is read from it."""
