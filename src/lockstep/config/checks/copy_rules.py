"""Rules for data.copy_to, and for data behind a URL."""

from lockstep.config.errors import Error, Errors
from lockstep.config.schema.target_sections import OF_FILES, Data, is_ours
from lockstep.data.transfer import copying


def errors(data: Data) -> Errors:
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
            yield Error(
                "unsupported",
                f"data.root={root}",
                "is a URL",
                "use data=image_folder or data=list, or give a folder",
            )
        elif not data.is_copied:
            yield Error(
                "unsupported",
                f"data.root={root}",
                "is a URL",
                "choose a folder for its files, data.copy_to=data/cache",
            )
