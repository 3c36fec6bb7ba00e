"""Hides secrets in everything that is printed, stored or sent, with the standard library only."""

import re
from typing import Any

HIDDEN = "***"
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
SECRET = re.compile(
    r".*(token|secret|passw(or)?d|credential)s?|(api|access|private|secret)?key"
    r"|passphrase|auth|authorization|sig(nature)?"
)
PLAIN = re.compile(r"(|null|none|true|false|\.{3}|[-+]?\d{0,4}(\.\d*)?(e[-+]?\d+)?)", re.IGNORECASE)
# These names are prose in "write key=value" and "KeyError: 'train'".
PROSE = re.compile(r"key|.*(Error|Exception)")
# The quantifier is possessive, as in the patterns below, so the time grows only with the length of
# a text.
OVERRIDE = re.compile(r"[-+~]*+([\w./@-]++)=")
USER = re.compile(r"://[^\s/?#'\"]*@")
QUERY = re.compile(r"(://(?:(?!://)[^\s?'\"])*+\?|\?(?=[\w.%-]++=))[^\s'\")>]+")
ASSIGNED = re.compile(
    r"(?<![\w./@-])(?=[\w./@-]*(?:token|secret|passw|credential|key|auth|sig|notify))"
    r"""([\w./@-]++)['"]?\s?[=:]\s?""",
    re.IGNORECASE,
)
VALUE = re.compile(r"""'[^']*'|"[^"]*"|(?:(?:Bearer|Basic)\s)?[^\s'",;}\])]+""", re.IGNORECASE)


def redact(value: Any, key: str = "") -> Any:
    """Replace the secrets in a configuration, a list of overrides or a text by `***`.

    Secrets are values under `notify` or a key named like a secret, and the user and query of a URL.
    A bool, null, and a number of up to four digits or with a point are not secrets. `key` is the
    dotted path of the value.
    """
    if isinstance(value, dict):
        return {name: redact(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_item(item, key) for item in value]
    if _is_secret(key) and not PLAIN.fullmatch(str(value)):
        return HIDDEN
    return _redact_text(value) if isinstance(value, str) else value


def _redact_text(message: str) -> str:
    message, start = QUERY.sub(rf"\1{HIDDEN}", USER.sub(f"://{HIDDEN}@", message)), 0
    chunks: list[str] = []
    while match := ASSIGNED.search(message, start):
        chunks.append(message[start : match.end()])
        start = match.end()
        if not PROSE.fullmatch(match[1]) and _is_secret(match[1]):
            value = VALUE.match(message, start)
            if value is not None and not PLAIN.fullmatch(value[0]):
                chunks.append(HIDDEN)
                start = value.end()
    return "".join([*chunks, message[start:]])


def _item(item: Any, key: str) -> Any:
    """Redact an item of a list.

    In an override `name=value`, the name is the key.
    """
    match = OVERRIDE.match(item) if isinstance(item, str) else None
    if match is None:
        return redact(item, key)
    return match[0] + redact(item[match.end() :], f"{key}.{match[1]}")


def _is_secret(key: str) -> bool:
    for component in re.split(r"[./@]", key):
        words = [word.lower() for word in WORD.findall(component)]
        if words == ["notify"] or any(map(SECRET.fullmatch, words)):
            return True
    return False
