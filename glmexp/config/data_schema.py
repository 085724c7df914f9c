"""The fields of ``data``: what is read, and how it becomes samples."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from annotated_types import Ge, Gt, Lt
from omegaconf import MISSING

from glmexp.config.choices import OnBad, OverLength, Source, Turns
from glmexp.config.ranges import MaybeCount


@dataclass
class ColumnsConfig:
    """Names of the columns in the data file; null recognises the usual ones."""

    prompt: Optional[str] = MISSING
    input: Optional[str] = MISSING
    """Appended to the prompt on a new line, as alpaca's ``input``."""
    response: Optional[str] = MISSING
    history: Optional[str] = MISSING
    messages: Optional[str] = MISSING
    system: Optional[str] = MISSING


@dataclass
class DataConfig:
    source: Source = MISSING
    """``hub``: a dataset of the Hugging Face hub. ``synthetic``: random tokens, every sample ``max_length`` long, for
    measuring."""
    path: Any = MISSING
    """A file, a pattern such as ``data/*.jsonl``, or a list of them: JSONL, JSON, CSV, TSV or Parquet. With ``source=hub`` the
    dataset's name. null is the instruction set that ships with glmexp."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    max_length: Annotated[int, Ge(2)] = MISSING
    """Tokens of one sample, prompt and answer together. Activation memory grows with it."""
    max_source_length: MaybeCount = MISSING
    """Tokens kept of the prompt (its head), as ChatGLM2's official P-tuning script; null has no limit of its own."""
    max_target_length: MaybeCount = MISSING
    """Tokens kept of the answer; null has no limit of its own."""
    over_length: OverLength = MISSING
    """What happens to a sample longer than ``max_length``: its oldest turns go and then its end is cut, or it is dropped. Both
    are counted."""
    on_bad: OnBad = MISSING
    """A line that cannot be read stops the run, or is counted and skipped."""
    limit: MaybeCount = MISSING
    """Samples read from the head of the data; null reads all."""
    turns: Turns = Turns.all
    """Of a conversation of several turns, the answers that are learnt: all, or the last."""
    encoding: Optional[str] = None
    """Of text files, such as gb18030; null takes UTF-8, with or without a byte order mark, and GB18030 where it is not that."""
    subset: Optional[str] = None
    """``source=hub``: the dataset's configuration."""
    revision: Optional[str] = None
    """``source=hub``: a commit, branch or tag of the dataset; null is its newest."""
    split: Optional[str] = None
    """``source=hub``: null is train."""
    streaming: bool = False
    """``source=hub``: read samples as they come, up to ``limit``, without fetching the whole dataset."""
    packing: bool = False
    """Several samples share one row of ``max_length`` tokens; none of them sees another."""
    group_by_length: bool = False
    """Samples of like length share a micro batch, so that there is less padding; the order stays seeded."""
    eval_path: Any = None
    """Validation samples, as ``path``."""
    eval_share: Annotated[Optional[float], Gt(0), Lt(1)] = None
    """Share of the samples that is held out for validation, drawn with ``train.seed``."""
    eval_split: Optional[str] = None
    """``source=hub``: the split of the validation samples."""
    eval_limit: MaybeCount = None
    """Validation samples used; null uses all."""
