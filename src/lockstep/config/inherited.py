"""Keys of a section that its option's file wrote for another `_target_`, and that the new one takes as **kwargs."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lockstep.config import signatures
from lockstep.config.compose import Source, composed, plain
from lockstep.config.key_scopes import EVERYWHERE
from lockstep.config.known_targets import FALLBACK, KNOWN
from lockstep.config.schema import fields, section
from lockstep.config.signatures import Signature
from lockstep.system.trees import at


def inherited_faults(
    tree: dict[str, Any], typed: Collection[str], choices: Mapping[str, str], source: Source
) -> Iterator[str]:
    """A fault for every section with a `_target_` other than its option's that would be given that option's keys.

    Keys that were `typed`, and those that the new target has by name, are meant. What a target without **kwargs does
    not have is unknown to it, which the check of the signature tells. `choices` are overrides by their groups.
    """
    for group in FALLBACK:
        target = at(tree, [group, "_target_"])
        signature = _open_signature(target)
        if signature is None:
            continue
        option, own = _option(group, choices, source)
        if own.get("_target_") in (None, target):
            continue
        section_type = section(tree, [group])
        meant = {*signature.names, *(fields(section_type) if section_type is not None else ())}
        kept = [
            key
            for key, value in own.items()
            if not key.startswith("_") and key not in meant and f"{group}.{key}" not in typed
            if key in tree[group] and tree[group][key] == value
        ]
        if kept:
            yield (
                f"{group}._target_={target} would be given {', '.join(kept)} of conf/{group}/{option}.yaml, which are "
                f"for {own['_target_']}: leave them out by {' '.join(f'~{group}.{key}' for key in kept)}, or write "
                f"conf/{group}/mine.yaml for it and choose {group}=mine"
            )


def _open_signature(target: Any) -> Signature | None:
    """The signature of a target of the user's own that takes any keyword; None of every other."""
    try:
        signature = signatures.find(target) if isinstance(target, str) and target not in KNOWN else None
    except signatures.Missing:
        return None
    return signature if signature is not None and signature.takes_any else None


def _option(group: str, choices: Mapping[str, str], source: Source) -> tuple[str, dict[str, Any]]:
    """The option that is chosen in a group, and what it says by itself, without experiments."""
    option = composed(list(choices.values()), source, with_hydra=True).hydra.runtime.choices[group]
    others = [text for name, text in choices.items() if name not in (group, *EVERYWHERE)]
    alone = plain(composed([*others, f"{group}={option}"], source))[0].get(group)
    return option, alone if isinstance(alone, dict) else {}
