"""What is wrong with a DeepSpeed config between its keys: each rule says what DeepSpeed 0.19.8 does with the values it finds.

A rule speaks of values that it can read. A value that is unknown ("auto", a word where a number is due) keeps it silent, since
what the key itself may hold is the key table's matter. A value that asks for nothing (false, null, a device of "none") is fine
anywhere; one that asks for something that will not happen is an error, its default written out included.
"""

from collections.abc import Collection, Iterator

from glmexp.dsconfig.findings import Finding, Situation, View
from glmexp.dsconfig.rules import (
    batch,
    compiling,
    device,
    offload,
    optimizer,
    parallel,
    precision,
    reduction,
    scaler,
    scheduler,
    sections,
    stages,
    trainer,
    zenflow,
    zero,
)
from glmexp.dsconfig.rules.asked import Asked

__all__ = ["findings"]

SUBJECTS = (
    batch,
    optimizer,
    scheduler,
    precision,
    scaler,
    stages,
    zero,
    reduction,
    offload,
    zenflow,
    parallel,
    compiling,
    sections,
    device,
    trainer,
)


def findings(view: View, situation: Situation, unread: Collection[str] = ()) -> Iterator[Finding]:
    """Every broken rule, in the order of the subjects; never raises, whatever the config holds.

    ``unread`` are keys that stand in the config under a wrong name or in a wrong place, as it seems.
    """
    asked = Asked(view, situation, unread)
    for subject in SUBJECTS:
        yield from subject.findings(asked)
