"""What can go wrong that is not the command's fault, and how it is said."""

import sys


class HarnessError(Exception):
    """The machines could not be made to run the command; the text says what to do."""


def say(text: str) -> None:
    """Tell the user, beside what the command writes."""
    print(f"softroce: {text}", file=sys.stderr, flush=True)
