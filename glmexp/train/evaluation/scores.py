"""How near an answer is to its reference: ROUGE and BLEU as the official ChatGLM scripts reckon them.

``chatglm2_char`` is ChatGLM2's ptuning/main.py: ROUGE-1, -2 and -L (f, x 100) of jieba's words, BLEU-4 (x 100) of characters.
``chatglm3_jieba`` is ChatGLM3's finetune_demo/finetune_hf.py: both of jieba's words, of texts without white space around them,
and BLEU-4 from 0 to 1. Both smooth BLEU by NLTK's method 3. Figures of the two cannot be compared with each other.

Those scripts stop at an empty text; here an empty answer or reference scores 0.
"""

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from glmexp.config.choices import Metric

NAMES = ("rouge-1", "rouge-2", "rouge-l", "bleu-4")
DIGITS = 4
"""Decimals that the scripts round the scores of one sample to, before their mean."""


def score(metric: Metric, answer: str, reference: str) -> dict[str, float]:
    """The scores of one answer, by ``NAMES``; the higher the better."""
    if not answer.strip() or not reference.strip():
        return dict.fromkeys(NAMES, 0.0)
    if metric is Metric.chatglm3_jieba:
        answer, reference = answer.strip(), reference.strip()
    answer_words, reference_words = words(answer), words(reference)
    scores = _rouge(answer_words, reference_words)
    if metric is Metric.chatglm3_jieba:
        return {**scores, "bleu-4": _bleu(answer_words, reference_words)}
    return {**scores, "bleu-4": round(100 * _bleu(list(answer), list(reference)), DIGITS)}


def mean(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each score's mean over the samples, of which there is at least one."""
    return {name: sum(row[name] for row in scores) / len(scores) for name in NAMES}


def words(text: str) -> list[str]:
    """The text cut into words by jieba, white space kept as words of its own."""
    return list(_jieba().cut(text))


@cache
def _jieba() -> Any:
    """jieba with its own dictionary, read anew in each process.

    By default it keeps what it has read in a file of a fixed name in /tmp, which any user of the machine may have put there,
    and loads that with marshal.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its invalid escapes and its use of pkg_resources
        import jieba
    jieba.setLogLevel(logging.WARNING)
    found = jieba.Tokenizer()
    with tempfile.TemporaryDirectory(prefix="glmexp-jieba-") as private:
        found.tmp_dir = private
        found.initialize()
    return found


def _rouge(answer: Sequence[str], reference: Sequence[str]) -> dict[str, float]:
    """f of ROUGE-1, -2 and -L x 100, rounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from rouge_chinese import Rouge
    (found,) = Rouge().get_scores(" ".join(answer), " ".join(reference))
    return {name: round(100 * value["f"], DIGITS) for name, value in found.items()}


def _bleu(answer: Sequence[str], reference: Sequence[str]) -> float:
    """BLEU-4 of one sentence against one reference, from 0 to 1."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    return float(sentence_bleu([list(reference)], list(answer), smoothing_function=SmoothingFunction().method3))
