"""Checks that the data of a run exists, before anything starts.

The checks use no torch and do not open a file.
"""

from pathlib import Path

from lockstep.config.errors import ConfigError, config_error, errors_of
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_FOLDER, IMAGE_LIST, Data, is_ours
from lockstep.data.images.image_table import class_folders, require_folder, require_path
from lockstep.data.sources import FOLDERS
from lockstep.system.text import expand_path


def check(section: Data) -> None:
    """Raise ConfigError, with the setting and a hint, if the data of a section does not exist."""
    try:
        section = section.resolve_paths()
        root = None if section.is_remote else section.root
        if section.target == IMAGE_LIST:
            _check_list(section, root)
        elif section.target == IMAGE_FOLDER and root is not None:
            class_folders(root)
        elif section.target in FOLDERS and root is not None:
            _check_downloaded(section, root)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(*errors_of(error)) from error
    except OSError as error:
        raise config_error(
            "access", f"data.root={section.root}", f"cannot be read ({error})", "check access"
        ) from error


def check_weights(config: Config) -> None:
    """Raise ConfigError if the file with the initial weights of a new run does not exist."""
    section = config.model
    pretrained = section.arguments().get("pretrained")
    if (
        is_ours(section.target)
        and isinstance(pretrained, str)
        and not Path(expand_path(pretrained)).is_file()
    ):
        raise config_error(
            "missing",
            f"model.pretrained={pretrained}",
            "is not a file",
            "correct it, or use true or false",
        )


def _check_list(section: Data, root: str | None) -> None:
    file = section.arguments().get("file")
    if not isinstance(file, str):
        return  # The second round reports its type.
    setting = f"data.file={file}"
    path = require_path(file, setting)
    if not path.is_file() or path.suffix != ".csv":
        raise ValueError(
            f"{setting} is not a .csv file: save the list as CSV, with to_csv of pandas for one."
        )
    if root is not None:
        require_folder(root)


def _check_downloaded(section: Data, root: str) -> None:
    if Path(root).is_file() or not section.arguments().get("download"):
        folder = require_folder(root) / FOLDERS[section.target]
        if not folder.is_dir():
            raise FileNotFoundError(
                f"data.root={root} has no folder {folder}: "
                "set data.download=true, or correct the path."
            )
