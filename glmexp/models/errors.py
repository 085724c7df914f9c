"""What a model folder that cannot be loaded raises."""

from glmexp.config.errors import UserError


class ModelLoadError(UserError):
    """A model or tokenizer folder that cannot be read as it is: names the folder, the file or field, and the next move."""
