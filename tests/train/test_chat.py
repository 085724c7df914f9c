"""Questions from standard input, with a model that says what it was asked."""

import io
import sys

from glmexp.train.predict import Writer, _text, talk


class Echo:
    out = io.StringIO()

    def __init__(self) -> None:
        self.history: list[str] = []
        self.asked: list[str] = []

    def ask_again(self, question: str) -> None:
        question.encode("utf-8")  # as a tokenizer does
        self.history.append(question)
        self.asked.append(question)


def test_bytes_that_are_no_text_end_no_chat(monkeypatch):
    lines = "你好\n".encode() + b"\xff what\n\nclear\nmore\nexit\nnever\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))
    chat = Echo()
    talk(chat)
    assert chat.asked == ["你好", "\N{REPLACEMENT CHARACTER} what", "more"]
    assert chat.history == ["more"]
    assert _text("a\udcff") == "a?"
    assert _text(None) is None


def test_an_answer_cannot_steer_the_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for out, shown in ((Terminal(), "好\u3000\N{REPLACEMENT CHARACTER}[2J\tok\n"), (io.StringIO(), "好\u3000\x1b[2J\tok\n")):
        Writer(None, [], out).finish("好\u3000\x1b[2J\tok")
        assert out.getvalue() == shown
