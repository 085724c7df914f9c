"""``report.md``: the answer first, then the trials."""

import re
from collections.abc import Sequence
from pathlib import Path

from glmexp.sweep.report.answer import one_line
from glmexp.sweep.report.columns import columns
from glmexp.sweep.report.content import Content
from glmexp.sweep.report.wording import say

SPECIAL = re.compile(r"[\\`*\[\]|~$]")


def markdown(content: Content, steps: Sequence[str], pictures: Sequence[Path]) -> str:
    """The file's text; ``steps`` say how the recommendation is used."""
    lang, told = content.lang, content.answer
    blocks = [f"# {escaped(say(lang, 'title', name=content.name))}", _lines(told.sentences or [told.states])]
    if steps:
        blocks.append(_lines(steps, "- "))
    blocks += [f"## {say(lang, 'states')}", _lines((told.states, *told.notes), "- ")]
    if told.how:
        blocks += [f"## {say(lang, 'how')}", _lines(told.how)]
    if content.trials:
        blocks += [f"## {say(lang, 'trials')}", _table(content)]
    if pictures:
        blocks += [f"## {say(lang, 'plots')}", "\n".join(f"![{path.stem}]({path.name})" for path in pictures)]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in a table too."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\g<0>", plain)


def _lines(sentences: Sequence[str], start: str = "") -> str:
    return "\n".join(f"{start}{escaped(sentence)}" for sentence in sentences)


def _table(content: Content) -> str:
    shown = columns(content, full=False)
    rows = [[escaped(one_line(column.title)) for column in shown], ["---:" if column.numeric else "---" for column in shown]]
    rows += [[escaped(one_line(column.text(trial))) for column in shown] for trial in content.ranked]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
