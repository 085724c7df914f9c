"""The overview of a sweep on W&B: what its run logs, and a workspace with plots over what was swept."""

import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmexp.track.base import SweepInfo
from glmexp.track.swept import SPEED, columns, config_keys, is_number, memory_column

KEPT = "wandb/overview.json"
"""File in the sweep folder with the ids of the overview's run and workspace, which a resumed sweep goes on with."""


def kept(folder: Path) -> dict[str, str]:
    """``run``: id of the overview's run, made with the first call; ``view`` and ``view_name``: the workspace's, once saved."""
    file = folder / KEPT
    if not file.is_file():
        _keep(folder, {"run": secrets.token_hex(4)})
    return {str(name): str(value) for name, value in json.loads(file.read_text(encoding="utf-8")).items()}


def _keep(folder: Path, ids: dict[str, str]) -> None:
    (folder / KEPT).parent.mkdir(exist_ok=True)
    (folder / KEPT).write_text(json.dumps(ids), encoding="utf-8")


def remove_local(folder: Path, identity: str) -> None:
    """Removes the local files of an earlier overview, which the new one replaces."""
    for path in (folder / "wandb").glob(f"*run-*-{identity}"):
        shutil.rmtree(path, ignore_errors=True)


def content(sweep: SweepInfo) -> dict[str, Any]:
    """The table of all trials, and the scatter plot of memory (GiB) against speed (tokens/s) of those that have both."""
    import wandb

    names = columns(sweep.rows)
    cells = {name: _one_type([row.get(name) for row in sweep.rows]) for name in names}
    rows = [list(row) for row in zip(*cells.values(), strict=True)]
    memory = memory_column(sweep.rows)
    points = [
        [row.get("trial"), float(row[memory]), float(row[SPEED])]
        for row in sweep.rows
        if is_number(row.get(memory)) and is_number(row.get(SPEED))
    ]
    scatter = wandb.Table(columns=["trial", memory, SPEED], data=points)
    return {
        "trials": wandb.Table(columns=names, data=rows),
        "memory_and_speed": wandb.plot.scatter(scatter, memory, SPEED, title="Memory (GiB) and tokens/s"),
    }


def _one_type(values: Sequence[Any]) -> list[Any]:
    """Numbers, also those written as text, if all are; else texts: W&B wants one type a column. null stays null."""
    try:
        return [value if value is None or is_number(value) else float(value) for value in values]
    except (TypeError, ValueError):
        return [None if value is None else str(value) for value in values]


def workspace(sweep: SweepInfo, group: str, entity: str, project: str) -> Any:
    """A workspace of the sweep's group: a scatter plot and parallel coordinates over what was swept."""
    from wandb_workspaces.reports.v2 import interface as panels
    from wandb_workspaces.workspaces import interface as workspaces

    memory = memory_column(sweep.rows)
    ends: list[Any] = [panels.SummaryMetric(memory), panels.SummaryMetric(SPEED)]
    swept: list[Any] = [panels.Config(key) for key in config_keys(sweep)]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=f"glmexp {group}",
        sections=[
            workspaces.Section(
                name="Sweep",
                is_open=True,
                panels=[
                    panels.ScatterPlot(title="Memory (GiB) and tokens/s", x=ends[0], y=ends[1]),
                    panels.ParallelCoordinatesPlot(
                        title="What was swept",
                        columns=[panels.ParallelCoordinatesPlotColumn(metric=metric) for metric in (*swept, *ends)],
                    ),
                ],
            )
        ],
        runset_settings=workspaces.RunsetSettings(filters=f"Group == {group!r} and JobType == 'trial'"),
    )


def save_workspace(sweep: SweepInfo, group: str, entity: str, project: str) -> str:
    """Saves the workspace on the server, over the one of an earlier call, and returns its address."""
    made, ids = workspace(sweep, group, entity, project), kept(sweep.folder)
    made._internal_id, made._internal_name = ids.get("view", ""), ids.get("view_name", "")
    try:
        made.save()
    except Exception:
        if "view" not in ids:
            raise
        made.save_as_new_view()  # somebody has deleted the earlier one
    _keep(sweep.folder, {**ids, "view": made._internal_id, "view_name": made._internal_name})
    return str(made.url)
