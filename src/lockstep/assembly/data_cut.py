"""Cut of the data: its fold, and groups of images in two splits, which make an evaluation too good."""

from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.target_sections import Data
from lockstep.data.cuts import Fold
from lockstep.data.splits import Splits
from lockstep.system.wording import plural


def fold_of(section: Data) -> Fold | None:
    return None if section.folds is None else Fold(section.fold, section.folds)


def refuse_shared_groups(section: Data, images: Splits) -> Splits:
    """Return the images. Raises ConfigError for a group in two splits, unless data.shared_groups=accept."""
    first, shared = dict[str, tuple[str, str]](), dict[str, str]()
    for split, part in images.parts.items() if section.shared_groups == "refuse" else ():
        for group, name in zip(part.groups or (), part.names, strict=False):
            known, other = first.setdefault(group, (split, name))
            if known != split:
                shared.setdefault(group, f"{known} ({other}) and {split} ({name})")
    for group, places in shared.items():
        problem = f"forbids {plural(len(shared), 'group')} in two splits, such as {group} in {places}"
        hint = "move their images, or set data.shared_groups=accept"
        raise ConfigError(Error("data.shared_groups=refuse", problem, hint))
    return images
