"""docs/configuration.md, every key there is: `python -m lockstep.cli.reference > docs/configuration.md`."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.compose import CONF, composed
from lockstep.config.faults import shown
from lockstep.config.key_scopes import scope
from lockstep.config.options import groups
from lockstep.config.schema import fields, kind_of, section
from lockstep.config.sections import Scope
from lockstep.config.target_sections import FALLBACK
from lockstep.system.trees import at, leaves

HEAD = """\
# Configuration

Written by `python -m lockstep.cli.reference > docs/configuration.md` from the schema and `conf/`; a test fails when it
is not current. `python train.py --help` says the same of the options that you choose there.

A key is set by `key=value`, a group by `group=option`. What a key decides says when it may change:

| decides | that is | on `resume=` | when a sweep goes on | between the jobs of a sweep |
| --- | --- | --- | --- | --- |
"""
CHANGES = {
    Scope.NUMBERS: ("no", "no", "yes"),
    Scope.LENGTH: ("yes", "no", "yes"),
    Scope.PLACE: ("yes", "yes", "yes"),
    Scope.WATCHING: ("yes", "yes", "yes"),
    Scope.OUTPUT: ("yes", "yes", "no"),
    Scope.SWEEP: ("yes", "yes", "no"),
    Scope.SUBMISSION: ("always the command's", "yes", "no"),
}
COLUMNS = "| key | value | type and range | decides | meaning |\n| --- | --- | --- | --- | --- |"


def text() -> str:
    """The whole page."""
    options = groups(CONF)
    lines = [HEAD + "\n".join(f"| {_word(each)} | {each.value} | {' | '.join(row)} |" for each, row in CHANGES.items())]
    tree = _tree()
    tops = [key for key in tree if not isinstance(tree[key], dict)]
    lines += _table("At the top", tree, tops)
    for name in (key for key in tree if isinstance(tree[key], dict)):
        if name in FALLBACK:
            for option in options[name]:
                chosen = _tree(f"{name}={option}")
                lines += _table(f"`{name}={option}`", chosen, [key for key, _ in leaves(chosen[name], name)])
        else:
            lines += _table(f"`{name}`", tree, [key for key, _ in leaves(tree[name], name)])
    for title, name, override in (
        ("`search=tpe`", "search", "search=tpe"),
        ("`benchmark`, of `lockstep benchmark` alone", "benchmark", "+benchmark=default"),
    ):
        chosen = _tree(override)
        lines += _table(title, chosen, [key for key, _ in leaves(chosen[name], name)])
    return "\n".join(lines) + "\n"


def _word(decided: Scope) -> str:
    return decided.name.lower()


def _tree(*overrides: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(composed(overrides))
    return found


def _table(title: str, tree: dict[str, Any], keys: list[str]) -> Iterator[str]:
    """A heading, what the section is, and a row for each of its keys."""
    yield f"\n## {title}\n"
    about = section(tree, keys[0].split(".")[:1]) if "." in keys[0] else None
    if about is not None and about.__doc__:
        yield f"{about.__doc__}\n"
    yield COLUMNS
    for key in keys:
        if not key.endswith("._partial_"):
            yield _row(tree, key)


def _row(tree: dict[str, Any], key: str) -> str:
    path = key.split(".")
    parent = section(tree, path[:-1])
    field = fields(parent).get(path[-1]) if parent is not None else None
    kind, meaning = (kind_of(field), field.description) if field is not None else ("", "")
    cells = (f"`{key}`", f"`{shown(at(tree, path))}`", kind, _word(scope(key, tree)), meaning or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(text(), end="")
