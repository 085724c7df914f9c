"""A SentencePiece BPE file as a fast ``tokenizers`` tokenizer with the same ids, for ChatGLM2 and ChatGLM3.

transformers' own conversion (its Llama tokenizer) differs on leading and doubled spaces, hence this one. Both merge by the
rank of the joined piece, so every pair of pieces whose join is a piece becomes a merge, in the order of SentencePiece's scores.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from glmexp.models.errors import ModelLoadError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

_SPACE = "\u2581"
# One string a setting that the conversion takes for granted: dummy prefix, kept whitespace, identity normaliser, byte fallback,
# digits apart, no piece matched from text as a whole.
_PROBES = (
    "a",
    " a",
    "a  b ",
    "\n",
    "\t\tx",
    "Ａ①ﬁ½",
    "１２ 2024",
    "\U0001f600",
    "<s></s><unk><0x0A>",
    "▁a▁",
    "你好，世界 hello",
)


def convert(file: Path) -> "Tokenizer":
    """The tokenizer of ``file``, without special tokens beyond the pieces. ModelLoadError if it cannot be represented."""
    processor = _read(file)
    tokenizer = _build(processor)
    for text in _PROBES:
        if tokenizer.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise ModelLoadError(
                f"{file} is a SentencePiece model with other settings than ChatGLM's (it splits {text!r} differently).\n"
                "Take the tokenizer.model of the original ChatGLM2 or ChatGLM3 repository."
            )
    return tokenizer


def _read(file: Path) -> "SentencePieceProcessor":
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_file=str(file))
    except (RuntimeError, OSError) as error:
        raise ModelLoadError(
            f"{file} is not a readable SentencePiece model ({file.stat().st_size} bytes): it may be cut short.\n"
            "Download it again from the model's repository."
        ) from error


def _build(processor: "SentencePieceProcessor") -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    size = processor.get_piece_size()
    vocabulary = {processor.id_to_piece(number): number for number in range(size)}
    # Control, unknown and byte pieces are never the result of a merge: their names are not text.
    plain = [
        number
        for number in range(size)
        if not (processor.is_control(number) or processor.is_unknown(number) or processor.is_byte(number))
    ]
    text_pieces = {processor.id_to_piece(number): number for number in plain}
    merges: list[tuple[str, str]] = []
    for number in sorted(plain, key=lambda number: (-processor.get_score(number), number)):
        piece = processor.id_to_piece(number)
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(left, right) for left, right in pairs if left in text_pieces and right in text_pieces]
        merges += sorted(known, key=lambda pair: (text_pieces[pair[0]], text_pieces[pair[1]]))
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=processor.id_to_piece(processor.unk_id()),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return tokenizer
