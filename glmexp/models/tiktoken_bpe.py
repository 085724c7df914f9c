"""A tiktoken rank file as a fast ``tokenizers`` tokenizer with the same ids, for GLM-4 (no tiktoken needed).

The file holds a token's bytes in base64 and its rank a line. tiktoken merges the pair whose join has the lowest rank; as with
SentencePiece, every pair of tokens whose join is a token becomes a merge, in rank order.
"""

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING

from glmexp.models.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# From GLM-4's tokenization_chatglm.py: how text is cut before merging.
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def is_rank_file(file: Path) -> bool:
    """Whether the first line is base64, a space and a number."""
    with file.open("rb") as lines:
        first = lines.readline(200).split()
    if len(first) != 2 or not first[1].isdigit():
        return False
    try:
        base64.b64decode(first[0], validate=True)
    except binascii.Error:
        return False
    return True


def convert(file: Path) -> "Tokenizer":
    """The tokenizer of ``file``, without special tokens. ModelLoadError if a line is damaged or a rank is missing."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    ranks = _read(file)
    letters = _byte_letters()
    written = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in pairs if left in ranks and right in ranks]
        merges += [(written[left], written[right]) for left, right in sorted(known, key=lambda p: (ranks[p[0]], ranks[p[1]]))]
    # tiktoken takes a whole cut that is a token as it is, before any merge: ignore_merges.
    model = BPE(vocab={written[token]: rank for token, rank in ranks.items()}, merges=merges, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read(file: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ModelLoadError(
                f"{file}:{number} is not a line of a tiktoken rank file: {line[:40]!r}.\nDownload the file again."
            ) from error
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or sorted(ranks.values()) != list(range(len(ranks))):
        what = f"has no token for byte {missing[0]}" if missing else "leaves out ranks"
        raise ModelLoadError(f"{file} {what}: it may be cut short ({len(ranks)} tokens).\nDownload the file again.")
    return ranks


def _byte_letters() -> dict[int, str]:
    """The printable letter of each byte that byte-level tokenizers use (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
