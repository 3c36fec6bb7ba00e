"""Whether the data of a run is there, looked at before anything starts: no torch, no file is opened.

What only reading can tell, a broken image say, is told by those who read.
"""

from collections.abc import Callable
from pathlib import Path

from lockstep.config import signatures
from lockstep.config.data_sections import Data, Downloaded, Files, ImageFolder, ImageList, OpenData
from lockstep.config.faults import ConfigError
from lockstep.config.target_sections import Library, Target
from lockstep.data.images.listing import FOLDERS, check_folders, existing
from lockstep.data.transfer import remote


def check(section: Data) -> None:
    """Raise ConfigError, with the setting and the cure, where the data of a section is not there.

    A source of the user's own is asked where it names a function for that, `_check_`, which gets the same arguments.
    """
    try:
        if isinstance(section, Files):
            _check_files(section)
        elif isinstance(section, ImageList):
            _check_list(section)
        elif isinstance(section, OpenData) and section.check is not None:
            _imported(section.check)(**section.arguments())
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error).splitlines()) from error
    except OSError as error:
        raise ConfigError([f"data.root={getattr(section, 'root', '')} cannot be read ({error}): mend it"]) from error


def check_weights(section: Target) -> None:
    """Raise ConfigError where the file that a new run is to have its weights from is not there."""
    if isinstance(section, Library) and isinstance(section.pretrained, str) and not Path(section.pretrained).is_file():
        raise ConfigError([f"model.pretrained={section.pretrained} is no file: correct the path, or use true or false"])


def _imported(target: str) -> Callable[..., object]:
    """The user's own check. Raises ConfigError where its module cannot be imported, whose text was read before."""
    try:
        own_check = signatures.load(target)
    except Exception as error:  # whatever its module raises
        raise ConfigError([f"data._check_={target} cannot be imported ({error}): mend its module"]) from error
    if not callable(own_check):
        raise ConfigError([f"data._check_={target} is no function: name one that raises where data is missing"])
    return own_check


def _check_list(section: ImageList) -> None:
    setting = f"data.file={section.file}"
    path = existing(section.file, setting)
    if not path.is_file() or path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{setting} is no file that ends in .csv or .parquet: give one of these.")
    if path.suffix == ".parquet" and not signatures.is_there("pyarrow"):
        raise ValueError(f"{setting} needs pyarrow: pip install 'lockstep[parquet]', or give a CSV file.")
    if section.root is not None:
        existing(section.root, f"data.root={section.root}")


def _check_files(section: Files) -> None:
    setting = f"data.root={section.root}"
    if remote.is_url(section.root):
        remote.check(section.root, "data.root")
    elif isinstance(section, ImageFolder):
        check_folders(section.root)
    elif isinstance(section, Downloaded) and section.download:
        root = Path(section.root).expanduser()
        if root.exists() and not root.is_dir():
            raise ValueError(f"{setting} is a file: name a folder for what is downloaded.")
    else:
        folder = existing(section.root, setting) / FOLDERS[section.target]
        if not folder.is_dir():
            raise FileNotFoundError(f"{setting} has no folder {folder}: set data.download=true, or correct the path.")
