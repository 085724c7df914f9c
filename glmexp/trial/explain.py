"""The ``explain`` verb: compose, and tell each key of the DeepSpeed dict in the user's language. Writes nothing to disk."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.cells import cell_len
from rich.text import Text as Styled

from glmexp.config.choices import Device, Language
from glmexp.config.compose import compose
from glmexp.config.rules import warnings
from glmexp.config.schema import Config
from glmexp.dsconfig.convert import Expanded
from glmexp.dsconfig.effect import Text, mebibytes, one_rank_note
from glmexp.dsconfig.examine import examine
from glmexp.dsconfig.explain import Row
from glmexp.dsconfig.explain import explain as rows_of
from glmexp.trial.placement import Placement, resolve
from glmexp.trial.preview import config_dir
from glmexp.trial.tasks import Screen

NARROWEST, WIDEST = 40, 110
INDENT = "    "
JSON = "--json"
HEAD: Text = {"en": "explain: {device} ({asked}), {ranks} rank{s}", "zh": "explain：{device}（{asked}），{ranks} 个 rank"}
AS_SET: Text = {"en": "as set", "zh": "按 launch.device"}
AS_PROBED: Text = {"en": "as probed", "zh": "按探测结果"}
ORIGIN: Text = {"en": "origin: {origin} [{place}]", "zh": "来源：{origin} [{place}]"}
NOT_IN_EFFECT: Text = {"en": "not in effect: {why}", "zh": "不生效：{why}"}
IN_EFFECT: Text = {"en": "in effect", "zh": "生效"}
HOW: Text = {"en": "in effect: {how}", "zh": "生效：{how}"}
COUNT: Text = {"en": "{keys} keys, {idle} not in effect", "zh": "共 {keys} 个键，{idle} 个不生效"}
NOTE: Text = {"en": "note: ", "zh": "注意："}
ELSEWHERE: Text = {
    "en": "Not DeepSpeed's: glmexp's worker does the schedule (scheduler.*) and activation checkpointing (activation.*).",
    "zh": "学习率调度（scheduler.*）和激活检查点（activation.*）由 glmexp 的训练进程完成，不是 DeepSpeed 的键。",
}
# A word with the blanks after it, or one wide character with the punctuation that may not begin or end a line.
PIECES = re.compile(r"[（《“]*[^\s　-鿿＀-￯]+[，。、；：）》”！？]*\s*|[（《“]*[　-鿿＀-￯][，。、；：）》”！？]*\s*")


def explain(flags: Sequence[str], expanded: Expanded) -> int:
    """Prints the keys, or with ``--json`` a list of them; returns the exit code, raises UserError as ``check`` does."""
    as_json = JSON in flags
    composed = compose(expanded.overrides, config_dir("explain", [flag for flag in flags if flag != JSON]))
    composed = replace(composed, sources=expanded.relabel(composed.sources))
    config = composed.config
    placement = resolve(config, os.environ, launching=False)
    ds_config, cautions = examine(config, placement.machine, probed=config.launch.device is Device.auto)
    rows = rows_of(composed, placement.machine)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _show(rows, config, ds_config, placement)
    # At the foot of the table. On this verb lang has an effect, which ``warnings`` says of the others that it has not.
    for line in [*warnings(replace(config, lang=Language.en)), *cautions]:
        print(f"warning: {line}", file=sys.stderr)
    return 0


def _show(rows: Sequence[Row], config: Config, ds_config: Mapping[str, Any], placement: Placement) -> None:
    language = config.lang.value
    console = Screen(highlight=False, soft_wrap=True)
    width = max(NARROWEST, min(console.width, WIDEST))
    console.print(head(config, placement, language), style="bold", markup=False)
    for row in rows:
        console.print(*block(row, language, width), sep="\n")
    idle = sum(not row.in_effect for row in rows)
    console.print("\n" + COUNT[language].format(keys=len(rows), idle=idle), markup=False)
    if note := one_rank_note(ds_config, placement.machine):
        console.print("\n".join(wrap(NOTE[language] + note[language], width)), markup=False)
    console.print("\n".join(wrap(ELSEWHERE[language], width)), markup=False)


def head(config: Config, placement: Placement, language: str) -> str:
    asked = AS_PROBED if config.launch.device is Device.auto else AS_SET
    ranks = placement.machine.world_size
    plural = "s" if ranks > 1 else ""
    return HEAD[language].format(device=placement.machine.device, asked=asked[language], ranks=ranks, s=plural)


def block(row: Row, language: str, width: int) -> list[Styled]:
    """The lines of one key. The first is ``KEY = VALUE``, never broken, so that it can be searched for."""
    first = Styled.assemble("\n", (row.key, "bold cyan"), f" = {plain(row.value)}")
    if row.bytes:
        first.append(f"  ({mebibytes(row.bytes)})")
    effect = (HOW if row.how else IN_EFFECT)[language].format(how=row.how)
    if not row.in_effect:
        effect = NOT_IN_EFFECT[language].format(why=row.why)
    origin = ORIGIN[language].format(origin=row.origin, place=row.place)
    below = [
        *(Styled(line, "green" if row.in_effect else "yellow") for line in indented(effect, width)),
        *(Styled(line, "dim") for line in indented(origin, width)),
        *(Styled(line) for line in indented(row.text, width)),
    ]
    return [first, *below]


def plain(value: Any) -> str:
    """A value as JSON writes it, text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def indented(text: str, width: int) -> list[str]:
    return [INDENT + line for line in wrap(text, width - len(INDENT))]


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a Chinese character takes two. A word that is longer stays whole."""
    lines, line = [], ""
    for piece in PIECES.findall(text):
        if line and cell_len(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
    return [*lines, line.rstrip()]
