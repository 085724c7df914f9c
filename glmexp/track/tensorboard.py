"""TensorBoard: an event file in the trial folder, for ``tensorboard --logdir <run or sweep folder>``.

Curves are scalars, the configuration is both text and hyperparameters of the HParams tab, and a run that did not complete has
the status "failure" there. Written with TensorBoard's own record writer, without torch or TensorFlow, and named without the
machine's name, which TensorBoard's usual writer puts into the file's name.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glmexp.config.files import leaves
from glmexp.track.base import RunInfo, SweepInfo, Tracker, curves, figures, plain, run_config
from glmexp.track.online import refuse_missing
from glmexp.track.swept import SPEED, columns, config_keys, configs, is_number, memory_column

RESULT = "result/"
"""Stands before the figures of the whole run, which share names with those of a step."""
OVERVIEW = "events.out.tfevents.0.overview"


def preflight() -> list[str]:
    """Checks the package without importing it.

    Raises:
        UserError: tensorboard is not installed.
    """
    refuse_missing("tensorboard", "'glmexp[tensorboard]'")
    return []


class TensorboardTracker(Tracker):
    """One event file for one trial. Its methods may raise: give it to ``BackgroundTracker``."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(warn)
        self._events: _Events | None = None
        self._step = 0

    def start(self, run: RunInfo) -> None:
        self._events = events = _Events(run.folder / f"events.out.tfevents.{time.time_ns()}.glmexp")
        self.where = str(run.folder)
        config = run_config(run)
        events.text("config", _code({key: value for key, value in config.items() if key != "deepspeed_config"}))
        events.text("deepspeed_config", _code(config["deepspeed_config"]))
        events.hparams(session_start_info={"hparams": dict(_hparams(run)), "start_time_secs": time.time()})

    def go_on(self, step: int) -> None:
        """Takes back what earlier event files of the run hold of later steps."""
        assert self._events is not None
        self._events.begin_again(step + 1)

    def log(self, row: Mapping[str, Any]) -> None:
        assert self._events is not None
        self._step = int(row.get("step") or self._step)
        self._events.scalars(curves(row), self._step)

    def finish(self, result: Mapping[str, Any]) -> None:
        """The figures of the whole run, state and reason as text, and the status of the HParams tab."""
        events = self._events
        assert events is not None
        state = plain(result.get("state"))
        metrics = figures(result.get("metrics") or {})
        events.scalars({f"{RESULT}{name}": value for name, value in metrics.items()}, self._step)
        events.text("result", _code({"state": state, "reason": result.get("reason")}))
        status = "STATUS_SUCCESS" if state == "complete" else "STATUS_FAILURE"
        events.hparams(session_end_info={"status": status, "end_time_secs": time.time()})
        events.close()

    def overview(self, sweep: SweepInfo) -> None:
        """In the sweep folder: a table of all trials, and an HParams tab with what was swept, memory and speed alone."""
        path = sweep.folder / OVERVIEW
        partial = sweep.folder / f".{OVERVIEW}"
        partial.unlink(missing_ok=True)
        events = _Events(partial)
        events.text("trials", _markdown(sweep))
        events.text("states", _code(dict(sweep.counts)))
        events.hparams(experiment=_experiment(sweep))
        events.close()
        partial.replace(path)
        self.where = str(sweep.folder)


class _Events:
    """An event file, flushed with each event so that a running TensorBoard shows it."""

    def __init__(self, path: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event_pb2, self._event, self._summary = event_pb2, event_pb2.Event, summary_pb2.Summary
        self._metadata, self._tensor, self._types = summary_pb2.SummaryMetadata, tensor_pb2.TensorProto, types_pb2
        self._writer = RecordWriter(path.open("xb"))
        self._write(file_version="brain.Event:2")

    def begin_again(self, step: int) -> None:
        """TensorBoard drops what it has read of this step and later ones, as its ``purge_step`` does."""
        start = self._event_pb2.SessionLog(status=self._event_pb2.SessionLog.START)
        self._write(step=step, session_log=start)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=found))

    def text(self, tag: str, markdown: str) -> None:
        tensor = self._tensor(dtype=self._types.DT_STRING, string_val=[markdown.encode()])
        self._value(tag, tensor, "text", b"")

    def hparams(self, **information: Any) -> None:
        """One of ``experiment``, ``session_start_info`` and ``session_end_info``, as fields of the plugin's message."""
        from google.protobuf.json_format import ParseDict
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        (kind,) = information
        tag = {
            "experiment": metadata.EXPERIMENT_TAG,
            "session_start_info": metadata.SESSION_START_INFO_TAG,
            "session_end_info": metadata.SESSION_END_INFO_TAG,
        }[kind]
        content = ParseDict({**information, "version": metadata.PLUGIN_DATA_VERSION}, plugin_data_pb2.HParamsPluginData())
        self._value(tag, metadata.NULL_TENSOR, metadata.PLUGIN_NAME, content.SerializeToString())

    def close(self) -> None:
        self._writer.close()

    def _value(self, tag: str, tensor: Any, plugin: str, content: bytes) -> None:
        about = self._metadata(plugin_data=self._metadata.PluginData(plugin_name=plugin, content=content))
        self._write(summary=self._summary(value=[self._summary.Value(tag=tag, tensor=tensor, metadata=about)]))

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


def _code(content: Any) -> str:
    """JSON as a block of code, which TensorBoard shows as it is, whatever is in it."""
    text = json.dumps(plain(content), indent=2, ensure_ascii=False)
    return "\n".join(f"    {line}" for line in text.splitlines())


def _markdown(sweep: SweepInfo) -> str:
    def cell(value: Any) -> str:
        text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else " ".join(str(value).split())
        return text.replace("|", "\\|")[:200]

    names = columns(sweep.rows)
    lines = [names, ["---"] * len(names), *([cell(row.get(name)) for name in names] for row in sweep.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _hparams(run: RunInfo) -> Iterator[tuple[str, bool | float | str]]:
    """The config as a flat list of dotted keys: all that the HParams tab takes. A value that is null is left out."""
    for key, value in leaves(plain(run.config)):
        if isinstance(value, bool | int | float | str):
            yield key, value
        elif value:
            yield key, json.dumps(value, ensure_ascii=False)


def _experiment(sweep: SweepInfo) -> dict[str, Any]:
    keys = config_keys(sweep)
    seen: dict[str, list[Any]] = {key: [] for key in keys}
    for config in configs(sweep):
        for key, value in leaves(config):
            if key in seen and value is not None and value not in seen[key]:
                seen[key].append(value)

    def described(key: str, values: list[Any]) -> dict[str, Any]:
        if all(isinstance(value, bool) for value in values):
            kind = "DATA_TYPE_BOOL"
        else:
            kind = "DATA_TYPE_FLOAT64" if all(is_number(value) for value in values) else "DATA_TYPE_STRING"
        domain = [str(value) for value in values] if kind == "DATA_TYPE_STRING" else values
        return {"name": key, "type": kind, "domain_discrete": domain}

    metrics = [f"{RESULT}{SPEED}", f"{RESULT}{memory_column(sweep.rows)}"]
    return {
        "description": f"glmexp sweep {sweep.name}",
        "time_created_secs": time.time(),
        "hparam_infos": [described(key, values) for key, values in seen.items() if values],
        "metric_infos": [{"name": {"tag": metric}} for metric in metrics],
    }
