"""The variables in the paths of the data of a run, which machines replace by their own."""

import os
import re
import socket

from lockstep.config.schema.target_sections import Data

VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
PATHS = ("root", "file", "cache", "copy_to")


def resolve_paths(section: Data) -> Data:
    """Replace $NAME in the paths of a section by the variables of this process; a configuration keeps the name.

    Raises ValueError, with a line for each variable that is not set.
    """
    paths = {key: path for key in PATHS if isinstance(path := getattr(section, key, None), str)}
    errors = [
        f"data.{key}={path}: ${name} is not set on {socket.gethostname()}: set it there, or give a path"
        for key, path in paths.items()
        for name in VARIABLE.findall(path)
        if not os.environ.get(name)
    ]
    if errors:
        raise ValueError("\n".join(errors))
    found = {key: VARIABLE.sub(lambda name: os.environ[name[1]], path) for key, path in paths.items()}
    return section.model_copy(update=found)
