"""Enumerations of what may be chosen, whose members are keys of many tables."""

from enum import Enum

__all__ = ["Choice"]


class Choice(Enum):
    """Members are hashed by identity: an Enum's own way is a call of Python's."""

    __hash__ = object.__hash__
