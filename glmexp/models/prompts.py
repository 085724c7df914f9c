"""Which prompt format a tokenizer is used with."""

from typing import TYPE_CHECKING

from glmexp.models.chat_template import ChatPrompts, PlainPrompts
from glmexp.models.conversation import TEMPLATE_KEY, Prompts, Segment, check_template
from glmexp.models.glm_prompts import Glm4Prompts, RolePrompts, RoundPrompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Prompts", "Segment", "prompts_for"]


def prompts_for(tokenizer: "PreTrainedTokenizerBase") -> Prompts:
    """The prompt format of ``tokenizer``: what ``load_tokenizer`` set or a saved folder remembers, else its chat template.

    UserError when there is neither, or when the tokenizer lacks a token of the format.
    """
    formats: dict[str, type[Prompts]] = {
        kind.template: kind for kind in (RoundPrompts, RolePrompts, Glm4Prompts, ChatPrompts, PlainPrompts)
    }
    return formats[check_template(tokenizer.init_kwargs.get(TEMPLATE_KEY) or "chat")](tokenizer)
