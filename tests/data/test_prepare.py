import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from characters import END, CharacterPrompts, Segment, data_config

from glmexp.config.choices import OnBad, OverLength, Source, Turns
from glmexp.config.errors import UserError
from glmexp.data import Samples, prepare
from glmexp.data.store import Counts, Part, Tokens, publish
from glmexp.trial.record import RankWriter, read_rank

PAIRS = [{"prompt": "ab", "response": "xyz"}, {"prompt": "abcd", "response": "x"}, {"prompt": "abcdefgh", "response": "xy"}]


def prepared(path, folder, vocab_size=200, seed=1, report=lambda done, total: None, **changes):
    prepare(data_config(path, **changes), CharacterPrompts(), vocab_size, seed, folder, report)
    return Samples.open(folder)


def test_samples_come_back_with_labels_aligned_to_ids(write, tmp_path):
    samples = prepared(write(PAIRS), tmp_path)
    assert len(samples) == 3
    ids, labels = samples.sample(0)
    assert ids.tolist() == [*b"abxyz", END]
    assert labels.tolist() == [-100, -100, *b"xyz", END]
    # J8: where a label is set it is the token's own id, since the model shifts.
    for index in range(3):
        ids, labels = samples.sample(index)
        assert ((labels == ids) | (labels == -100)).all()
    assert (samples.counts.tokens, samples.counts.targets, samples.counts.longest) == (6 + 6 + 11, 4 + 2 + 3, 11)
    with pytest.raises(IndexError):
        samples.sample(3)
    assert isinstance(samples._ids, np.memmap)


def test_counts_tell_what_became_of_the_samples(write, tmp_path):
    bad = '{"prompt": \n'
    text = "".join(json.dumps(pair) + "\n" for pair in PAIRS) + bad
    seen = []
    samples = prepared(
        write(text), tmp_path, on_bad=OnBad.skip, max_length=5, report=lambda done, total: seen.append((done, total))
    )
    counts = samples.counts
    assert (counts.read, counts.kept, counts.cut, counts.bad) == (4, 2, 2, 1)
    assert list(counts.dropped.values()) == [1]
    assert seen[0] == (0, None)
    assert seen[-1] == (3, 3)
    assert (
        "4 samples read, 2 kept (2 cut), 1 dropped: 1 without a token of the answer within data.max_length" in counts.describe()
    )
    assert "1 bad and skipped" in counts.describe()


@pytest.mark.parametrize(("enough", "wanted"), [(2, [11, 6]), (3, [11, 6, 6]), (9, [11, 6, 6])])
def test_the_longest_samples_are_kept_the_longest_first(write, tmp_path, enough, wanted):
    path = write(PAIRS)
    prepare(data_config(path), CharacterPrompts(), 200, 1, tmp_path, enough=enough)
    samples = Samples.open(tmp_path)
    lengths = [len(samples.sample(index)[0]) for index in range(len(samples))]
    assert lengths == wanted
    counts = samples.counts
    assert (counts.kept, counts.unused, counts.tokens) == (len(wanted), 3 - len(wanted), sum(wanted))
    assert ("1 left out, as the others are enough" in counts.describe()) is (enough == 2)


def test_no_more_is_encoded_once_enough_samples_are_as_long_as_can_be(write, tmp_path):
    seen = []
    report = lambda done, total: seen.append(done)  # noqa: E731
    long = [{"prompt": "ab" * 20, "response": "xyz"}, {"prompt": "a", "response": "b"}, {"prompt": "ab" * 30, "response": "z"}]
    data = data_config(write(long), max_length=6, max_source_length=4)
    prepare(data, CharacterPrompts(), 200, 1, tmp_path, report, enough=1)
    samples = Samples.open(tmp_path)
    assert samples.sample(0)[0].tolist() == [*b"abab", *b"z", END]
    assert (len(samples), samples.counts.unused, max(seen)) == (1, 2, 0)


def test_over_length_drop_counts(write, tmp_path):
    samples = prepared(write(PAIRS), tmp_path, max_length=6, over_length=OverLength.drop)
    assert samples.counts.kept == 2
    assert samples.counts.dropped == {"longer than data.max_length": 1}
    assert samples.counts.cut == 0


@pytest.mark.parametrize(("over_length", "needed"), [(OverLength.drop, 6), (OverLength.cut, 3)])
def test_all_dropped_is_refused_with_the_counts_and_the_length_needed(write, tmp_path, over_length, needed):
    path = write(PAIRS)
    with pytest.raises(UserError) as caught:
        prepared(path, tmp_path, max_length=2, over_length=over_length)
    message = str(caught.value)
    assert len(message.splitlines()) <= 6
    for words in ("3 samples read, 0 kept, 3 dropped", str(path), "data.max_length (now 2", f"needs {needed})"):
        assert words in message
    assert not (tmp_path / "tokens").exists()


class RefusingPrompts(CharacterPrompts):
    def conversation(self, messages, turns=Turns.all):
        if messages[0]["role"] == "system":
            raise UserError("this template has no system role")
        return super().conversation(messages, turns)


def test_a_sample_that_the_template_refuses_is_named_or_skipped(write, tmp_path):
    path = write([{"prompt": "a", "response": "b"}, {"prompt": "a", "response": "b", "system": "s"}])
    with pytest.raises(UserError, match=r"train\.jsonl:2: this template has no system role"):
        prepare(data_config(path), RefusingPrompts(), 200, 1, tmp_path)
    prepare(data_config(path, on_bad=OnBad.skip), RefusingPrompts(), 200, 1, tmp_path)
    counts = Samples.open(tmp_path).counts
    assert (counts.read, counts.kept, counts.bad) == (2, 1, 1)


def test_a_tokenizer_larger_than_the_model_is_refused(write, tmp_path):
    with pytest.raises(UserError, match="token id 122, but the model's vocabulary has 122 rows"):
        prepared(write(PAIRS), tmp_path, vocab_size=122)
    assert len(prepared(write(PAIRS), tmp_path, vocab_size=123)) == 3


def test_synthetic_samples_are_seeded_full_length_and_all_learnt(tmp_path):
    def synthetic(name, seed, **changes):
        data = data_config(None, source=Source.synthetic, max_length=16, **changes)
        prepare(data, None, 50, seed, tmp_path / name)
        return Samples.open(tmp_path / name)

    first, again, other = synthetic("a", 1), synthetic("b", 1), synthetic("c", 2, limit=4)
    assert (len(first), len(other)) == (256, 4)
    ids, labels = first.sample(7)
    assert len(ids) == 16
    assert (labels == ids).all()
    assert (ids == again.sample(7)[0]).all()
    assert (ids[:4] != other.sample(0)[0][:4]).any()
    every = np.concatenate([first.sample(index)[0] for index in range(256)])
    assert every.min() >= 0
    assert 40 < every.max() < 50


def test_tokens_are_made_once_for_the_same_settings_and_file(write, tmp_path):
    path = write(PAIRS)
    prepared(path, tmp_path)
    stamp = (tmp_path / "tokens" / "counts.json").stat().st_ino
    prepared(path, tmp_path)
    assert (tmp_path / "tokens" / "counts.json").stat().st_ino == stamp
    path.write_text(json.dumps(PAIRS[0]) + "\n")
    assert len(prepared(path, tmp_path)) == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tokens")]


def test_what_killed_processes_left_half_written_goes(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = f".tokens.{socket.gethostname()}"
    for name in (
        f"{here}.{ended.pid}",
        f"{here}.{ended.pid}.stale",
        f"{here}.{os.getppid()}",
        f".tokens.elsewhere.{ended.pid}",
    ):
        (tmp_path / name).mkdir()
    publish(tmp_path, "k", Part(Tokens(), Counts()))
    assert sorted(os.listdir(tmp_path)) == sorted([f"{here}.{os.getppid()}", f".tokens.elsewhere.{ended.pid}", "tokens"])


def test_another_process_that_was_faster_keeps_its_tokens(tmp_path):
    for number in range(2):
        tokens = Tokens()
        tokens.add([number, 5], [False, True])
        publish(tmp_path, "k", Part(tokens, Counts(kept=1)))
    assert Samples.open(tmp_path).sample(0)[0].tolist() == [0, 5]


class OtherPrompts(CharacterPrompts):
    def conversation(self, messages, turns=Turns.all):
        return [Segment([7], False), *super().conversation(messages, turns)]


def test_tokens_of_another_prompt_format_are_replaced_and_an_open_view_stays(write, tmp_path):
    path = write(PAIRS)
    before = prepared(path, tmp_path)
    prepare(data_config(path), OtherPrompts(), 200, 1, tmp_path)
    assert Samples.open(tmp_path).sample(0)[0][0] == 7
    assert before.sample(0)[0].tolist() == [*b"abxyz", END]


TALKS = [
    {"prompt": chr(97 + number), "response": f"{number}", "history": [["before", "long ago"]] * (number % 2)}
    for number in range(20)
]


def lines_of(samples):
    return [samples.sample(index)[0].tolist() for index in range(len(samples))]


def validated(path, folder, seed=1, **changes):
    training = prepared(path, folder, seed=seed, **changes)
    return training, Samples.open(folder, "validation")


def test_a_share_is_held_out_at_random_by_the_seed_and_never_trained_on(write, tmp_path):
    path = write(TALKS)
    whole = lines_of(prepared(path, tmp_path / "whole"))
    training, validation = validated(path, tmp_path / "a", eval_share=0.15)
    assert (len(training), len(validation)) == (17, 3)
    assert sorted(lines_of(training) + lines_of(validation)) == sorted(whole)
    assert lines_of(training) == [line for line in whole if line not in lines_of(validation)]
    assert lines_of(validation) != whole[:3]
    again = validated(path, tmp_path / "b", eval_share=0.15)
    assert [lines_of(part) for part in again] == [lines_of(training), lines_of(validation)]
    other = validated(path, tmp_path / "c", seed=2, eval_share=0.15)
    assert lines_of(other[1]) != lines_of(validation)
    counts = training.counts
    assert (counts.read, counts.kept, counts.held_out, counts.tokens) == (20, 17, 3, sum(map(len, lines_of(training))))
    assert counts.describe() == "20 samples read, 17 kept, 3 held out for validation"
    assert (validation.counts.read, validation.counts.kept) == (3, 3)


def test_fewer_of_a_share_change_nothing_of_the_training(write, tmp_path):
    path = write(TALKS)
    training, validation = validated(path, tmp_path / "all", eval_share=0.25)
    fewer_training, fewer = validated(path, tmp_path / "two", eval_share=0.25, eval_limit=2)
    assert lines_of(fewer_training) == lines_of(training)
    assert (len(fewer), fewer.counts.read, fewer.counts.unused) == (2, 5, 3)
    assert all(line in lines_of(validation) for line in lines_of(fewer))


@pytest.mark.parametrize(("share", "held"), [(0.01, 0), (0.99, 20)])
def test_a_share_that_leaves_nothing_on_one_side_is_refused_with_the_counts(write, tmp_path, share, held):
    with pytest.raises(UserError) as caught:
        prepared(write(TALKS), tmp_path, eval_share=share)
    for words in (f"data.eval_share={share}", f"holds out {held} and leaves {20 - held}", "20 samples read, 20 kept"):
        assert words in str(caught.value)
    assert not (tmp_path / "tokens").exists()


def test_a_file_of_its_own_gives_the_validation_samples(write, tmp_path):
    own = write(TALKS[:5], "dev.jsonl")
    training, validation = validated(write(PAIRS), tmp_path, eval_path=str(own), eval_limit=4)
    assert (len(training), len(validation), validation.counts.read) == (3, 4, 4)
    assert validated(write(PAIRS), tmp_path / "none")[1] is None
    os.utime(own, (1, 1))
    stamp = (tmp_path / "tokens").stat().st_ino
    validated(write(PAIRS), tmp_path, eval_path=str(own), eval_limit=4)
    assert (tmp_path / "tokens").stat().st_ino != stamp, "a validation file that has changed is read again"


def test_a_validation_file_of_which_nothing_is_left_is_refused_with_its_counts(write, tmp_path):
    own = write([{"prompt": "x" * 30, "response": "y"}], "dev.jsonl")
    with pytest.raises(UserError) as caught:
        prepared(write(PAIRS), tmp_path, eval_path=str(own), max_length=20)
    for words in ("no sample is left to validate with: 1 samples read, 0 kept", str(own), "data.max_length (now 20"):
        assert words in str(caught.value)
    assert not (tmp_path / "tokens").exists()


def test_a_validation_sample_knows_the_prompt_and_the_whole_answer(write, tmp_path):
    talk = {"prompt": "why?", "response": "because", "history": [["old", "older"], ["q", "a"]], "system": "S"}
    path = write([talk])
    _, validation = validated(path, tmp_path / "whole", eval_path=str(path))
    asked = validation.question(0)
    assert asked.ids == [ord(c) for c in f"Soldolder{chr(END)}qa{chr(END)}why?"]
    assert (asked.question, asked.reference) == ("why?", "because")
    # What was cut from the sample is not asked either; the answer stays whole.
    _, validation = validated(path, tmp_path / "cut", eval_path=str(path), max_length=16)
    assert "".join(map(chr, validation.question(0).ids)) == f"Sqa{chr(END)}why?"
    assert (validation.counts.cut, validation.counts.turns_cut) == (1, 1)
    limits = {"max_source_length": 3, "max_target_length": 2, "turns": Turns.last}
    _, validation = validated(path, tmp_path / "limits", eval_path=str(path), **limits)
    assert "".join(map(chr, validation.question(0).ids)) == "Sol"
    assert validation.question(0).reference == "because"


def test_cut_samples_are_counted_where_they_went(write, tmp_path):
    long = [{"prompt": "x" * 9, "response": "yy", "history": [["old", "older"]]}] * 10
    training, validation = validated(write(long), tmp_path, eval_share=0.3, max_length=11)
    assert (training.counts.cut, training.counts.turns_cut) == (7, 7)
    assert (validation.counts.cut, validation.counts.turns_cut) == (3, 3)
    assert "7 kept (7 cut, 7 oldest turns left out), 3 held out" in training.counts.describe()


def test_a_file_may_have_stray_bytes_in_its_name(write, tmp_path):
    """As one that was unpacked from an archive of another encoding."""
    paths = [write(PAIRS, name) for name in ("a.jsonl", os.fsdecode(b"b\xff.jsonl"))]
    samples = prepared(paths, tmp_path)
    assert [Path(told["source"]) for told in samples.counts.sources] == paths
    record = RankWriter(tmp_path, 0)
    record.note(f"data: {paths[1]}")
    assert read_rank(tmp_path, 0).notes == [f"data: {paths[1]}"]
