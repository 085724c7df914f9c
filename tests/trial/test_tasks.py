"""What the task verbs need of the machine: a screen that may go away, and the files that are named."""

import errno
from io import StringIO

import pytest
from rich.live import Live

from glmexp.trial.tasks import Screen


class Dying(StringIO):
    """A terminal that is closed after ``writes``, or a file on a disk that is full by then."""

    def __init__(self, number, writes=2):
        super().__init__()
        self.number, self.left = number, writes

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, "it is gone")
        return super().write(text)

    def isatty(self):
        return True


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPIPE])
def test_a_screen_goes_quiet_when_it_cannot_be_written_to(number):
    stream = Dying(number)
    screen = Screen(file=stream)
    for line in ("one", "two", "three", "four"):
        screen.print(line)
    assert screen.quiet
    assert stream.getvalue() == "one\ntwo\n"


def test_a_live_display_outlives_its_terminal():
    screen = Screen(file=Dying(errno.EIO), force_terminal=True)
    with Live("a table", console=screen, auto_refresh=False) as live:
        live.refresh()
        live.refresh()
    assert screen.quiet
