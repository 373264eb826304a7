"""What a user of the board can act on: one message, one exit code."""


class BoardError(Exception):
    """Something about the model, the data or the runtime that the message explains."""


def first_words(error: Exception) -> str:
    """Return what a runtime says of a failure, in one line."""
    return " ".join(str(error).split())[:800]
