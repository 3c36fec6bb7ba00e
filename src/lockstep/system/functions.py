"""Functions by the name "module:function", whose module is imported when it is used."""

import importlib
from collections.abc import Callable
from typing import Any


def named_function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
