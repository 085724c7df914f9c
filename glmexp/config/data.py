"""Rules about ``data``: where samples come from."""

import codecs
import glob
import os
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from glmexp.config.choices import Source
from glmexp.config.data_files import named
from glmexp.config.data_schema import DataConfig
from glmexp.config.schema import Config

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
NO_TEXT = ("idna", "punycode", "undefined")
"""Codecs of Python that are none of text in files."""
OF_THE_HUB = ("subset", "revision", "split", "streaming", "eval_split")
"""Fields that only ``data.source=hub`` takes."""


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    data = config.data
    if data.source is Source.synthetic:
        yield from _no_samples_of_its_own(data)
    elif data.source is Source.hub:
        yield from _hub(data)
    else:
        for setting in ("path", "eval_path"):
            yield from _paths(f"data.{setting}", getattr(data, setting))
    if data.source is not Source.hub:
        for name in OF_THE_HUB:
            if getattr(data, name):
                yield f"data.{name}={getattr(data, name)} has no effect with data.source={data.source.value}; add data=hub"
    yield from _validation(data)
    if data.columns.messages:
        for name in ("prompt", "response", "input", "history"):
            if value := getattr(data.columns, name):
                yield f"data.columns.{name}={value} has no effect with data.columns.messages={data.columns.messages}"
    if data.encoding is not None:
        yield from _encoding(data)


def warnings(config: Config) -> Iterator[str]:
    """What is likely not what was meant, one line each."""
    validating = _found(config.data.eval_path)
    both = validating and validating & _found(config.data.path)
    if both:
        yield f"data.eval_path={min(both)} is trained on too, so that the evaluation tells nothing of other samples"


def _found(value: Any) -> set[str]:
    """The files of ``data.path`` that are there, wherever links lead, and the names of those that are not."""
    paths = [match for path in named(value) for match in glob.glob(str(path), recursive=True) or [str(path)]]
    return set(map(os.path.realpath, paths))


def _no_samples_of_its_own(data: DataConfig) -> Iterator[str]:
    for name in ("path", "eval_path", "encoding"):
        value = getattr(data, name)
        if value is not None:
            yield f"data.{name}={value} has no effect with data=synthetic; use data=instruct data.{name}=..."


def _hub(data: DataConfig) -> Iterator[str]:
    path = data.path
    if not isinstance(path, str) or not (HUB_NAME.fullmatch(path) or PurePath(path).is_absolute()):
        yield f"data.path={path}: with data=hub it is one dataset of the Hugging Face hub, data.path=owner/name"
    elif data.revision is not None and PurePath(path).is_absolute():
        yield f"data.revision={data.revision} has no effect on a folder, data.path={path}"
    if data.eval_path is not None:
        yield f"data.eval_path={data.eval_path} is a file's, and data=hub reads none; use data.eval_split=NAME"
    if data.eval_split is not None and data.eval_split == (data.split or "train"):
        yield f"data.eval_split={data.eval_split} is the split that is trained on; name another, or use data.eval_share"


def _paths(setting: str, value: Any) -> Iterator[str]:
    items = named(value)
    if value is not None and not items:
        yield f"{setting}={value}: give a file, a pattern such as 'data/*.jsonl', or a list of them"
    for item in items:
        if not isinstance(item, str):
            yield f"{setting}={item}: must be a path; a file of that name is written ./NAME, a list [a.jsonl,b.csv]"
        elif not item.strip():
            yield f"{setting} holds an empty path: give a file, a pattern such as 'data/*.jsonl', or a list of them"


def _validation(data: DataConfig) -> Iterator[str]:
    sources = [f"data.{name}={value}" for name in ("eval_path", "eval_split", "eval_share") if (value := getattr(data, name))]
    if len(sources) > 1:
        yield f"{' and '.join(sources)} both give the validation samples; leave one out"


def _encoding(data: DataConfig) -> Iterator[str]:
    known = True
    try:
        known = codecs.lookup(str(data.encoding)).name not in NO_TEXT
        b"a".decode(str(data.encoding))  # of bytes that are none of the encoding's, as of UTF-16's, it is no matter
    except UnicodeError:
        pass
    except LookupError:
        known = False
    if not known:
        yield f"data.encoding={data.encoding}: Python knows no such encoding of text; use utf-8, gb18030, big5, utf-16, ..."
    if data.source is Source.hub:
        yield f"data.encoding={data.encoding} has no effect with data=hub; it is that of text files"
