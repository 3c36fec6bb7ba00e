"""Rules for data.copy_to, and for data behind a URL."""

from collections.abc import Iterator

from lockstep.config.errors import Error
from lockstep.config.schema.target_sections import OF_FILES, Data, is_ours
from lockstep.data.transfer import copying


def errors(data: Data) -> Iterator[Error]:
    """Yield the errors of the settings of a copy and of a URL."""
    root = data.root
    if data.copy_to is not None and data.target not in OF_FILES:
        yield Error(
            "conflict",
            f"data.copy_to={data.copy_to}",
            "is for data=image_folder and data=list",
            "remove it",
        )
    if root is not None and data.is_remote and is_ours(data.target):
        yield from (Error("value", "", problem) for problem in copying.url_errors(root))
        if data.target not in OF_FILES:
            hint = "use data=image_folder or data=list, or give a folder"
            yield Error("unsupported", f"data.root={root}", "is a URL", hint)
        elif not data.is_copied:
            hint = "choose a folder for its files, data.copy_to=data/cache"
            yield Error("unsupported", f"data.root={root}", "is a URL", hint)
