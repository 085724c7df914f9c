"""What is wrong with one sample, in words that can be shown on any terminal."""

SHOWN = 60
"""Characters of a bad sample that a message shows."""


class SampleError(Exception):
    """A sample that cannot be used.

    Args:
        what: what is wrong with it.
        move: what to do about it.
        text: the sample as it stands in the file, if it is no JSON value.
        fatal: nothing after it can be read, so it cannot be skipped.
    """

    def __init__(self, what: str, move: str, text: str | None = None, fatal: bool = False) -> None:
        super().__init__(what)
        self.move = move
        self.text = text
        self.fatal = fatal


def visible(text: str) -> str:
    """``text`` on one line: what a terminal would act on, or not show, is written as in a Python string."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text
    )
