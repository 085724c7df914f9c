from characters import CharacterPrompts, data_config

from glmexp.config.choices import OnBad, Source, Turns
from glmexp.data.preview import render


class CharacterTokenizer:
    def decode(self, ids, **options):
        return "".join("</s>" if token == 2 else chr(token) for token in ids)

    def convert_ids_to_tokens(self, token_id):
        return f"<0x{token_id:02X}>"


def show(path, samples=3, **changes):
    return render(data_config(path, **changes), CharacterTokenizer(), CharacterPrompts(), samples)


def test_spans_and_labels_are_visible(write):
    lines = show(write([{"prompt": "ab\n", "response": "[red]x"}]))
    assert lines[2] == "sample 1, line 1: 10 tokens, 7 learnt"
    assert lines[3:5] == [r"  masked | ab\n", "  learnt | [red]x</s>"]
    tokens = [line.split() for line in lines[6:]]
    assert tokens[1] == ["1", "98", "-100", "b"]
    assert tokens[2] == ["2", "10", "-100", r"\n"]
    assert tokens[3] == ["3", "91", "91", "["]
    # J8: a label is the token's own id.
    assert all(label in (token_id, "-100") for _, token_id, label, _ in tokens)


def test_what_a_terminal_would_act_on_is_escaped(write):
    lines = show(write([{"prompt": "\x1b[31m\u202e", "response": "\ufffd"}]))
    assert all(line.isprintable() for line in lines)
    assert any(r"\x1b[31m\u202e" in line for line in lines)
    assert lines[-2].endswith("<0xFFFD>")


def test_only_the_first_samples_are_shown_and_fates_are_told(write):
    path = write(
        [{"prompt": "abc", "response": "xyz"}, {"prompt": "abcdefgh", "response": "x"}, {"prompt": "", "response": ""}]
    )
    lines = show(path, max_length=5, on_bad=OnBad.skip)
    assert lines[0] == f"{path}: 2 samples, 1 bad"
    assert any("train.jsonl:3:" in line for line in lines)
    assert "sample 1, line 1: 5 tokens, 2 learnt, cut to the length limits" in lines
    assert "sample 2, line 2: left out, without a token of the answer within data.max_length" in lines
    assert not any("sample 2" in line for line in show(path, samples=1, on_bad=OnBad.skip))


def test_synthetic_data_has_nothing_to_read():
    assert "random token ids, 512 a sample" in render(data_config(None, source=Source.synthetic), None, None)[0]


TALK = [{"prompt": "three", "response": "C", "history": [["one", "A"], ["two", "B"]]}]


def spans(lines):
    return [line.strip() for line in lines if line.startswith(("  masked", "  learnt"))]


def test_the_answers_that_are_learnt_are_shown_each_with_its_end_token(write):
    every = spans(show(write(TALK)))
    assert every == ["masked | one", "learnt | A</s>", "masked | two", "learnt | B</s>", "masked | three", "learnt | C</s>"]
    assert spans(show(write(TALK), turns=Turns.last))[-2:] == ["masked | oneA</s>twoB</s>three", "learnt | C</s>"]


def test_turns_that_are_left_out_are_told(write):
    lines = show(write(TALK), max_length=12)
    assert lines[2] == "sample 1, line 1: 12 tokens, 4 learnt, the oldest 1 turn left out"
    assert spans(lines)[0] == "masked | two"
    assert "the oldest 2 turns left out" in show(write(TALK), max_length=7)[2]
