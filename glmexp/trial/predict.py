"""``python -m glmexp predict RUN``: answers of a trained model, to one question, to a file of them, or in a chat."""

from collections.abc import Sequence
from pathlib import Path

from glmexp.config.errors import USER_ERROR, UserError
from glmexp.trial.use import ask, changed, parse, run_config

HELP = """usage: python -m glmexp predict RUN ["QUESTION"] [KEY=VALUE ...]

The answer of a trained model, in the prompt format that it was trained in. RUN is the folder of a run. Without a question it
is a chat: history is kept, `clear` forgets it, `exit` or Ctrl-D ends, Ctrl-C stops an answer; standard input that is no
terminal is read a line a question. The answer alone goes to standard output.

  max_new_tokens=N        longest answer in tokens
  temperature=T           0 takes the likeliest token each time (default); above, answers are sampled
  top_p=P                 sampling: the likeliest tokens that together have this probability
  seed=N                  of the sampling
  system="TEXT"           a system message before the questions
  file=FILE               a question a line; an answer a line, as JSON with question and answer
  checkpoint=NAME         export, best, newest, or one such as step-000100; without it export/, else the best, else the newest
  launch.device=cpu|gpu   where to work; without it as the run, on a GPU where there is one

What is not given is as in the run's config: eval.max_new_tokens, eval.temperature, eval.top_p and eval.seed."""

GENERATION = ("max_new_tokens", "temperature", "top_p", "seed")
OPTIONS = (*GENERATION, "system", "file", "checkpoint", "launch.device")
WORKER = "glmexp.train.predict"


def main(arguments: Sequence[str]) -> int:
    """Answers and returns the exit code; raises UserError."""
    if not arguments or arguments[0] in ("--help", "-h"):
        print(HELP)
        return 0 if arguments else USER_ERROR
    words, given = parse("predict", arguments, OPTIONS)
    if not words:
        raise UserError('predict: which run?\npython -m glmexp predict RUN "QUESTION"')
    run, questions = Path(words[0]), words[1:]
    config = run_config("predict", run)
    if len(questions) > 1:
        raise UserError(f"predict takes one question, got {len(questions)}\nput it in quotes; file=FILE holds many, one a line")
    if questions and not questions[0].strip():
        raise UserError('predict: the question is empty\nleave it out for a chat, or ask: predict RUN "QUESTION"')
    if questions and "file" in given:
        raise UserError("a question and file= both say what to ask; leave one out")
    settings = {f"eval.{key}": given[key] for key in GENERATION if key in given}
    if given.get("temperature") and "top_p" not in given:
        settings["eval.top_p"] = "1.0"  # the run's own goes with the run's temperature
    if "launch.device" in given:
        settings["launch.device"] = given["launch.device"]
    request = {
        "run": str(run.absolute()),
        "question": questions[0] if questions else None,
        "questions": _questions(Path(given["file"])) if "file" in given else None,
        "system": given.get("system"),
        "checkpoint": given.get("checkpoint"),
    }
    return ask(WORKER, changed(config, settings), request)


def _questions(file: Path) -> list[str]:
    """The lines of ``file`` that hold something. Raises UserError."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"file={file} cannot be read: {reason}\ngive a text file with a question a line") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UserError(f"file={file} holds no question\ngive a text file with a question a line")
    return found
