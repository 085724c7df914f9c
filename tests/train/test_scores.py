"""Scores of answers against values worked out by hand from the formulas of the official scripts."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmexp.config.choices import Metric
from glmexp.train.evaluation.scores import NAMES, mean, score

# jieba cuts these into 北京 是 中国 的 首都 and 中国 的 首都 是 北京: all 5 words are shared, 2 of 4 word pairs, 3 in order.
TURNED = ("北京是中国的首都", "中国的首都是北京")


def test_chatglm2_scores_words_by_rouge_and_characters_by_bleu():
    scores = score(Metric.chatglm2_char, *TURNED)
    # Of 8 characters, 7 pairs, 6 triples and 5 quadruples of the answer 8, 5, 3 and 2 are in the reference.
    bleu = round(100 * (8 / 8 * 5 / 7 * 3 / 6 * 2 / 5) ** 0.25, 4)
    assert scores == {"rouge-1": 100.0, "rouge-2": 50.0, "rouge-l": 60.0, "bleu-4": bleu}
    assert bleu == 61.4788


def test_chatglm3_scores_words_by_both_and_bleu_is_no_percentage():
    scores = score(Metric.chatglm3_jieba, f" {TURNED[0]}\n", TURNED[1])
    # 5 words, 2 of 4 pairs, 1 of 3 triples (中国 的 首都), and no quadruple of 2: smoothed to half of one.
    assert scores["bleu-4"] == pytest.approx((5 / 5 * 2 / 4 * 1 / 3 * 1 / (2 * 2)) ** 0.25, rel=1e-12)
    assert {name: scores[name] for name in NAMES[:3]} == {"rouge-1": 100.0, "rouge-2": 50.0, "rouge-l": 60.0}


def test_a_short_answer_is_smoothed_and_penalised():
    scores = score(Metric.chatglm2_char, "好", "好的")
    # Precision 1, recall 1/2; BLEU's missing orders count 1/2, 1/4 and 1/8, and half the length costs a factor of e.
    assert scores["rouge-1"] == scores["rouge-l"] == round(100 * 2 * (1 * 0.5) / 1.5, 4)
    assert scores["bleu-4"] == round(100 * (1 / 64) ** 0.25 * math.exp(1 - 2), 4)


def test_sentences_are_one_text_for_rouge_l():
    # 3 marks against 1: precision 1/3, recall 1; as a set of words they are the same.
    scores = score(Metric.chatglm2_char, "。。。", "。")
    assert (scores["rouge-1"], scores["rouge-2"], scores["rouge-l"]) == (100.0, 0.0, 50.0)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("texts", [("", ""), ("", "好"), ("好", ""), (" \n", "好"), ("\u3000", "好")])
def test_an_empty_text_scores_nothing(metric, texts):
    assert score(metric, *texts) == dict.fromkeys(NAMES, 0.0)


@pytest.mark.parametrize("metric", list(Metric))
def test_marks_control_characters_and_line_breaks_have_scores(metric):
    for answer in ("。", "\n\n。\n", "…………", "\x00", "?\n!", '"', "<|user|>", "\ud83d"):
        for reference in ("。", "!", "\n。\n好。"):
            scores = score(metric, answer, reference)
            assert set(scores) == set(NAMES)
            assert all(0 <= value <= 100 for value in scores.values())


def test_the_mean_is_over_samples():
    rows = [dict.fromkeys(NAMES, 10.0), {**dict.fromkeys(NAMES, 20.0), "bleu-4": 0.0}]
    assert mean(rows) == {"rouge-1": 15.0, "rouge-2": 15.0, "rouge-l": 15.0, "bleu-4": 5.0}


def test_jieba_leaves_no_file_for_others_to_plant(tmp_path):
    code = "from glmexp.train.evaluation.scores import words; print(words('我们去公园'))"
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["['我们',", "'去',", "'公园']"]
    assert not done.stderr
    assert not list(tmp_path.iterdir())
