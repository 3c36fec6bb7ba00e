"""What is a secret, and what only looks like one."""

from typing import Any

import pytest

from lockstep.system.redaction import redact

URL = "https://h/x.zip?sig=hunter2&X-Amz-Signature=hunter3"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        # overrides
        (["train.py", "seed=1", "data.root=a?b"], ["train.py", "seed=1", "data.root=a?b"]),
        (["++notify.command=curl -H hunter2"], ["++notify.command=***"]),
        (["notify={command: hunter2}", "notify.command=null"],
         ["notify=***", "notify.command=null"]),
        (["+strategy.variables.WANDB_API_KEY=hunter2", "~data.apiToken=hunter2"],
         ["+strategy.variables.WANDB_API_KEY=***", "~data.apiToken=***"]),
        (["+data.x={_target_:a.B,api_token:hunter2,size:3}"],
         ["+data.x={_target_:a.B,api_token:***,size:3}"]),
        ([f"data.root='zip://::{URL}'"], ["data.root='zip://::https://h/x.zip?***'"]),
        (["data.key=hunter2", "data.my-passwd=hunter2", "data.pin_token=12345"],
         ["data.key=***", "data.my-passwd=***", "data.pin_token=***"]),
        (["cluster.setup=[export HF_TOKEN=hunter2 && x]"],
         ["cluster.setup=[export HF_TOKEN=*** && x]"]),
        # trees
        ({"a": {"auth": {"name": "hunter2"}, "credentials": ["hunter2"]}},
         {"a": {"auth": {"name": "***"}, "credentials": ["***"]}}),
        ({"notify": {"command": "hunter2", "timeout_s": 10.0}},
         {"notify": {"command": "***", "timeout_s": 10.0}}),
        ({"proxy": "http://me:hunter2@h:1/x", "list": [URL]},
         {"proxy": "http://***@h:1/x", "list": ["https://h/x.zip?***"]}),
        # texts
        (f"GET {URL} said 403, token: hunter2, n=3",
         "GET https://h/x.zip?*** said 403, token: ***, n=3"),
        ("{'aws_secret_access_key': 'hunter2', 'n': 1}", "{'aws_secret_access_key': ***, 'n': 1}"),
        ("Error: password: 'hunter 2' Authorization: Bearer hunter2",
         "Error: password: *** Authorization: ***"),
        ("KeyError: password: hunter2, 'monkey=api_token=hunter2'",
         "KeyError: password: ***, 'monkey=api_token=***'"),
        ("GET /x?se=1&sig=hunter2 failed", "GET /x?*** failed"),
        # none
        *((same, same) for same in (
            {"monkey": "x", "keys": ["a"], "tokenizer": "bert", "author": "me", "design": "x",
             "class_token": True},
            {"key_dim": 64, "token_dropout": 0.1, "tokens": None, "val/token_accuracy": 0.98765},
            "KeyError: 'train'",
            "data.api_token is not a setting: did you mean data.x?",
            "write key=value, no spaces around =: did you mean x=3?",
            "see https://h/x#y: a monkey=banana, keys=[a]; add it with +data.api_token=...",
        )),
    ],
)  # fmt: skip
def test_redact_secrets(value: Any, shown: Any) -> None:
    assert redact(value) == shown
    assert redact(shown) == shown


# a pattern that looks at every pair of characters takes five minutes and more
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    [
        "://",
        "a://",
        "key=",
        "author=",
        "@",
        "-",
        "?",
        "?a=",
        "key='",
        "token ",
        "https://u:",
        "A",
        "\\",
        '"',
        "(",
    ],
)
def test_redact_linear_time(part: str) -> None:
    text = part * (300_000 // len(part))
    for value in (text, [text], {text[:100_000]: text}):
        redact(value)
