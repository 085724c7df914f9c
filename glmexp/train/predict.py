"""The ``predict`` verb's child: ``python -m glmexp.train.predict FOLDER`` answers what the request in the folder asks."""

import contextlib
import json
import re
import sys
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from glmexp.config.errors import UserError
from glmexp.config.schema import Config, EvalConfig
from glmexp.train.child import answer, device, note

BATCH = 8
"""Questions of a file that are answered at once when ``eval.micro`` is null."""
WAITING = "> "
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal may take for more than text; tabs and ends of lines stay."""


def predict(config: Config, request: dict[str, Any], out: TextIO) -> None:
    """One answer, a file's answers, or a chat."""
    where = device(config.launch.device)
    from glmexp.train.weights.trained import find_source, load_trained

    run = Path(request["run"])
    source = find_source(run, request["checkpoint"])
    model, tokenizer = load_trained(run, config, where, source)
    chat = Chat(model, tokenizer, config.eval, out, _text(request["system"]))
    note(f"{config.method.name.value} model of {run}, from {source}")
    if request["questions"] is not None:
        chat.answer_all(request["questions"], config.eval.micro or BATCH)
    elif request["question"] is not None:
        chat.ask(_text(request["question"]))
    else:
        talk(chat)


def _text(word: str | None) -> Any:
    """A word of the command line without bytes that are no characters, which no tokenizer takes."""
    return word and word.encode("utf-8", "replace").decode("utf-8")


def talk(chat: "Chat") -> None:
    """Questions from standard input until its end, ``exit`` or Ctrl-D; ``clear`` forgets what was said."""
    terminal = sys.stdin.isatty() and chat.out.isatty()
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() edits with it: a Chinese character is deleted whole)
        note("clear forgets what was said, exit or Ctrl-D ends, Ctrl-C stops an answer")
    while True:
        line = _line(chat, terminal)
        if line is None or line in ("exit", "quit"):
            return
        if line == "clear":
            chat.history.clear()
        elif line:
            chat.ask_again(line)


def _line(chat: "Chat", terminal: bool) -> str | None:
    """The next line of standard input; None at its end."""
    if not terminal:
        return line.strip() if (line := sys.stdin.readline()) else None
    try:
        with contextlib.redirect_stdout(chat.out):  # where input() writes, and where it finds the terminal to edit on
            return input(WAITING).strip()
    except EOFError:
        print(file=chat.out)
        return None


@dataclass
class Chat:
    """A model that is asked, and what was said so far."""

    model: Any
    tokenizer: Any
    settings: EvalConfig
    out: TextIO
    system: str | None = None
    history: list[dict[str, str]] = field(default_factory=list)
    """Messages, user and assistant in turn."""

    def ask_again(self, question: str) -> None:
        """``ask`` in a chat: what cannot be answered, or is stopped with Ctrl-C, does not end it."""
        try:
            self.ask(question)
        except UserError as error:
            note(str(error))
        except KeyboardInterrupt:
            print(file=self.out)
            note("stopped; this question and its answer are forgotten")

    def ask(self, question: str) -> None:
        """Answers on ``out`` as the tokens come, and keeps question and answer. Raises UserError: it is too long."""
        from glmexp.train.evaluation.generate import stop_ids

        asked = {"role": "user", "content": question}
        writer = Writer(self.tokenizer, stop_ids(self.model, self.tokenizer), self.out)
        text = self._generate([self._prompt(asked)], writer)[0]
        writer.finish(text)
        if writer.unfinished:
            note(f"cut at max_new_tokens={self.settings.max_new_tokens}")
        self.history += [asked, {"role": "assistant", "content": text}]

    def answer_all(self, questions: list[str], batch: int) -> None:
        """A line of JSON a question, none of which sees another."""
        for start in range(0, len(questions), batch):
            part = questions[start : start + batch]
            prompts = [self._prompt({"role": "user", "content": question}) for question in part]
            texts = self._generate(prompts, numbers=range(start, start + len(part)))
            for question, text in zip(part, texts, strict=True):
                print(json.dumps({"question": question, "answer": text}, ensure_ascii=False), file=self.out, flush=True)

    def _generate(self, prompts: list[list[int]], writer: "Writer | None" = None, numbers: Any = None) -> list[str]:
        from glmexp.train.evaluation.generate import generate

        settings = self.settings
        return generate(
            self.model, self.tokenizer, prompts, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature,
            top_p=settings.top_p, seed=settings.seed, numbers=numbers, streamer=writer,
        )  # fmt: skip

    def _prompt(self, asked: dict[str, str]) -> list[int]:
        """Ids of the prompt; the oldest turns are forgotten when the model has no room for them. UserError: no room at all."""
        from glmexp.models.prompts import prompts_for

        format = prompts_for(self.tokenizer)
        start = [{"role": "system", "content": self.system}] if self.system else []
        positions = getattr(self.model.config, "max_position_embeddings", None)
        room = None if positions is None else positions - self.settings.max_new_tokens
        while True:
            ids = format.prompt([*start, *self.history, asked])
            if room is None or len(ids) <= room:
                return ids
            if not self.history:
                raise UserError(
                    f"the question has {len(ids)} tokens, and with max_new_tokens={self.settings.max_new_tokens} the model's "
                    f"{positions} positions leave room for {max(room, 0)}\nask shorter, or set a smaller max_new_tokens"
                )
            del self.history[:2]
            note("the oldest question and answer are forgotten: the model has no room for them")


class Writer:
    """Writes an answer as its tokens come (a ``streamer`` of transformers), whole characters only."""

    def __init__(self, tokenizer: Any, stops: list[int], out: TextIO) -> None:
        self.tokenizer = tokenizer
        self.stops = stops
        self.out = out
        self.ids: list[int] | None = None
        """None until the prompt has come, which is the first that is put."""
        self.unfinished = True
        self.written = ""

    def put(self, value: Any) -> None:
        """Takes the prompt [1, tokens] first, then a token at a time [1]."""
        if self.ids is None:
            self.ids = []
            return
        for token in value.flatten().tolist():
            if token in self.stops:
                self.unfinished = False
            elif self.unfinished:
                self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True).strip()
        # A character of several tokens, and white space that may be the last, wait for what follows.
        if text.startswith(self.written) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._write(text)

    def end(self) -> None:
        """The last token has come."""

    def finish(self, text: str) -> None:
        """Writes what is left of the whole answer."""
        self._write(text)
        print(file=self.out, flush=True)

    def _write(self, text: str) -> None:
        new = text[len(self.written) :]
        if self.out.isatty():  # an answer must not steer it
            new = CONTROL.sub("\N{REPLACEMENT CHARACTER}", new)
        print(new, end="", file=self.out, flush=True)
        self.written = text


if __name__ == "__main__":
    sys.exit(answer(Path(sys.argv[1]), predict))
