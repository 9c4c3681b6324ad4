"""The version of the library: plans on disk belong to one."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
