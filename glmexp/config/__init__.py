"""What was asked: the typed configuration, its rules, and where each value came from."""

from glmexp.config.compose import Composed, compose
from glmexp.config.errors import UserError
from glmexp.config.files import load, save
from glmexp.config.schema import Config

__all__ = ["Composed", "Config", "UserError", "compose", "load", "save"]
