"""verl: the tokens of a conversation by its real loop for tools, beside the chat template over the whole of it.

The loop and what builds its turns are real. The tokenizer has a token for each byte, and small templates in the shapes
of known ones. What the model, the tool and the user say is written here.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, MagicMock, Mock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Callable

WARM = ("torch", "ray", "hydra", "tensordict", "transformers")
_BASE, _LOOP = (f"verl.experimental.agent_loop.{it}agent_loop" for it in ("", "tool_"))
_TOKENIZERS = [f"verl.utils.tokenizer{it}" for it in ("", ".chat_template", ".continuous_token", ".tokenizer")]
_REAL = {_BASE, _LOOP, *_TOKENIZERS, f"{_TOKENIZERS[2]}_wiring", "verl.utils.chat_template", "verl.tools.schemas"}
_TOOLS, _USERS = (f"ToolAgentLoop._handle_{it}_state" for it in ("processing_tools", "interacting"))
_MERGES = [f"ContinuousTokenBuilder._merge_{it}_token_ids" for it in ("non_assistant", "context")]
_WHERE, _SAID, _HEARD = "the tokens are", "let me see it", "18 C"
_SHAPES = {  # what a turn begins with, and what an answer and any other turn end with
    "ChatML": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "two lines": ("<|im_start|>", "<|im_end|>\n\n", "<|im_end|>\n\n"),
    "open users": ("<|im_start|>", "<|im_end|>\n", "\n"),
    "parts": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "no separator": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "brackets": ("\n[INST]", "</s>", "[/INST]"),
    "refused answers": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
}
_LOST = [*_SHAPES][:4]
_TEMPLATE = """\
{%- if 'SHAPE' == 'refused answers' and messages[-1].role == 'assistant' %}{{ raise_exception('') }}{% endif %}
{%- if not messages or messages[0].role != 'system' %}{{ 'BEGINsystem\nhelpOTHER' }}{% endif %}
{%- for m in messages if m.role %}{{ 'BEGIN' + m.role + '\n' }}
{%- if m.content is string %}{{ '' if 'SHAPE' == 'parts' else m.content }}
{%- else %}{% for it in m.content %}{{ '<|image|>' if it.type == 'image' else it.text }}{% endfor %}{% endif %}
{{- 'ANSWER' if m.role == 'assistant' else 'OTHER' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'BEGINassistant\n' }}{% endif %}"""
_FEW, _TURN = 14, 24  # the tokens of an answer, and of the turn of a tool
Talk = tuple[list[int], list[int], list[float]]
"""The tokens of a conversation, and the mask and log-probabilities of all but the first turn."""


def _case(name: str, shape: str = "ChatML", core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, three rounds of a tool, and answers that end as the template has it."""
    options = {"shape": shape, "of": [_TOOLS, *_MERGES], "may_pass": True, **options}
    is_lost = shape in _LOST and not {"stop", "due"} & {*options} and options.get("limit") != _FEW
    ends = (DIFFERS, _WHERE) if is_lost else (PASSED, "")
    return Case(name, Topology(), *ends, options, core, DIFFERS if name == "mid-run" else PASSED)


_USER: dict[str, Any] = {"users": True, "of": [_USERS]}
CASES = (
    _case("three-tools", core=True),
    _case("three-users", core=True, **_USER),
    _case("image", shows=True, image=True),
    _case("no-separator", "no separator", core=True),
    _case("brackets", "brackets", beyond=True),  # upstream's own fix takes the end of a user's turn for the separator
    _case("cut-off", stop="", beyond=True, core=True),  # it adds one to any answer
    _case("mid-run", due="<|im_end|>"),
)
GRID = [
    *CASES[:-1],
    *(_case(it, it, beyond=True) for it in ("two lines", "open users")),
    _case("parts", "parts", shows=True, image=True),
    _case("refused answers", "refused answers", beyond=True, of=[_TOOLS]),  # the builders ask for such a chat, too
    *(_case(f"{it}, users", it, **_USER, beyond=it == "brackets") for it in _SHAPES if it not in ("ChatML", "parts")),
    _case("cut off in a line", "two lines", stop="\n", beyond=True),
    _case("rule of its own", own=True, due="<|im_end|>\n", of=_MERGES),
    *(_case(f"at most {limit}", limit=limit) for limit in (_FEW, _FEW + _TURN, _FEW + _TURN + 1)),
]
for _who, _more in {"tools": {}, "users": _USER}.items():
    GRID += [
        _case(f"another end, {_who}", stop="<|endoftext|>", beyond=True, **_more),
        _case(f"log-probabilities, {_who}", logs=True, **_more),
        _case(f"processor, {_who}", shows=True, **_more),
    ]
_CONTINUOUS: dict[str, Any] = {"continuous": True, "of": [_TOOLS]}
GRID += [_case("continuous", **_CONTINUOUS), _case("continuous, log-probabilities", logs=True, **_CONTINUOUS)]
GRID += [_case("continuous, no turn", limit=_FEW, **_CONTINUOUS)]
_SAYS = "tool_|im(age|g)|video|audio|interaction|reward|should_terminate|isinstance|text"
HELD = {
    _SAYS: "what a turn says, and not where it begins",
    r"^getattr\(self, .processor": "in 0.6.1, it renders no turn of a tool there, and no builder has one in 0.9.0",
    "response_logprobs or": "it is empty only where there are none",
    "except Exception": "is all that a template raises",
}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    is_more = case.options["shape"] in _LOST and "stop" not in case.options
    return {
        "version verl": "0.8.0",
        "turns of tools or of a user": case.options.get("limit") != _FEW,
        "a chat template that writes more after an answer than the stop token": is_more,
        "a policy that was trained without this fix": case.name == "mid-run",
    }


def prepare() -> None:
    """Import the loop among stand-ins, none of which takes part."""
    sys.meta_path.insert(0, Around("verl", _REAL, any_module))
    sys.meta_path.insert(0, Around("cachetools", (), any_module))
    importlib.import_module(_LOOP)


def on_rank(case: Case, rank: int) -> Talk | None:
    """Let the loop add each turn; nothing if a release has none of that kind."""
    base, kind, options = importlib.import_module(_BASE), importlib.import_module(_LOOP).ToolAgentLoop, case.options
    is_default = not options.get("function", "").startswith("Tool")  # the builder of models that have none of their own
    is_newest, needed = not hasattr(kind, "apply_chat_template"), _USERS if "users" in options else _TOOLS
    is_built = hasattr(kind, "ct_merge_assistant_token") and (is_default or "continuous" in options or is_newest)
    if not hasattr(kind, needed[14:]) or ("shows" in options and is_built and not is_newest):
        return None
    import torch

    tokenizer = _tokenizer(options["shape"])
    processor = Mock(spec=["image_processor"], apply_chat_template=tokenizer.apply_chat_template)
    processor.side_effect = lambda text, **_: {"input_ids": torch.tensor([_encoded(case, text[0])])}
    shows = {"processor": processor} if "shows" in options else {}
    loop: Any = object.__new__(type("Loop", (kind,), {"__getattr__": lambda *_: None}))
    heard = type("Heard", (SimpleNamespace,), {"__iter__": lambda self: iter((self, None, {}))})  # before 0.6, alone
    heard = heard(text=_HEARD, image=[object()] if "image" in options else None, video=None)
    vars(loop).update(
        tokenizer=tokenizer, loop=AsyncMock(**{"run_in_executor.side_effect": lambda _, function: function()}),
        _call_tool=AsyncMock(return_value=heard), response_length=options.get("limit", sys.maxsize),
        enable_continuous_token=is_built, apply_chat_template_kwargs={}, mm_processor_kwargs={}, max_parallel_calls=9,
        process_vision_info=AsyncMock(return_value={}), process_multi_modal_info=AsyncMock(return_value={}),
        rollout_config=SimpleNamespace(prompt_length=sys.maxsize), **shows,
    )  # fmt: skip
    first = getattr(base, "initialize_system_prompt", lambda it: it.apply_chat_template([{}], tokenize=True))
    loop.system_prompt = first(loop.processor or tokenizer)
    loop.turn_separator = getattr(base, "initialize_turn_separator", lambda _: [])(loop.processor or tokenizer)
    if is_built:
        is_qwen = not is_default and options["shape"] in _LOST
        family = ("qwen" if is_qwen else "default", "qwenvl" if is_qwen else "vldefault")[bool(shows)]
        loop.continuous_token_builder = base.create_continuous_token_builder(tokenizer, model_family=family, **shows)
    if "own" in options:  # a builder of the user's own, which puts the newline before the turn itself
        builder, line = loop.continuous_token_builder, _encoded(case, "\n")
        name = next(it[23:] for it in _MERGES if hasattr(builder, it[23:]))
        merge = getattr(builder, name)
        setattr(builder, name, lambda ids, turn, **more: merge(ids, [*line, *turn], **more))
    talk = _talked(case, lambda data: asyncio.run(getattr(loop, needed[14:])(data)).name == "TERMINATED")
    # in 0.6.1, a tool's turn has the system prompt, too
    return None if shows and "system" in tokenizer.decode(talk[0][-len(talk[1]) :]) else talk


def _talked(case: Case, add_turn: Callable[[Any], bool]) -> Talk:
    """Return three rounds of an answer and a turn after it, which is added until that says that it is the last."""
    end = case.options.get("stop", _SHAPES[case.options["shape"]][1].strip())
    data = MagicMock(
        messages=[{"role": "user", "content": "weather?"}], response_mask=[], response_logprobs=[], image_data=None,
        tool_calls=[Mock(tool_call_id=None)], _active_tool_schemas=None, interaction_kwargs={},
    )  # fmt: skip
    data.prompt_ids = _whole(case, data.messages)
    data.interaction.generate_response = AsyncMock(return_value=(False, _HEARD, None, {}))
    for _ in range(3):
        said = _encoded(case, _SAID + end)
        data.prompt_ids += said
        data.response_mask += [1] * len(said)
        data.response_logprobs += [-1.0] * len(said) if "logs" in case.options else []
        data.messages.append({"role": "assistant", "content": [{"type": "text", "text": _SAID}]})
        if add_turn(data):
            break
    return data.prompt_ids, data.response_mask, data.response_logprobs


@cache
def _tokenizer(shape: str) -> Any:
    """Return a tokenizer with a token for each byte, and a template of this shape."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_ = Tokenizer(models.BPE({it: at for at, it in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "</s>", "<|endoftext|>", "<|image|>"]
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_, additional_special_tokens=special)
    made.chat_template = _TEMPLATE
    for name, text in zip(("BEGIN", "ANSWER", "OTHER", "SHAPE"), (*_SHAPES[shape], shape)):
        made.chat_template = made.chat_template.replace(name, text)
    return made


def _encoded(case: Case, text: str) -> list[int]:
    """Return the tokens of a text, in which an image has three."""
    ids: list[int] = _tokenizer(case.options["shape"]).encode(text.replace("<|image|>", "<|image|>" * 3))
    return ids


def _whole(case: Case, messages: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of a whole conversation, in which an answer ends as the case has it."""
    options, end = case.options, _SHAPES[case.options["shape"]][1]
    text = _tokenizer(options["shape"]).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return _encoded(case, text.replace(_SAID + end, _SAID + options.get("due", options.get("stop", end))))


def _due(case: Case) -> Talk:
    """Return the conversation as the template has it, whole at each turn."""
    has_users, parts = "users" in case.options, [{"type": "image"}] * ("image" in case.options)
    turn = {"role": "user" if has_users else "tool", "content": [*parts, {"type": "text", "text": _HEARD}]}

    def add(data: Any) -> bool:
        data.messages.append(turn)
        whole = _whole(case, data.messages)
        more = len(whole) - len(data.prompt_ids)
        if not has_users and len(data.response_mask) + more >= case.options.get("limit", sys.maxsize):
            return True
        data.prompt_ids = whole
        data.response_mask += [0] * more
        data.response_logprobs += [0.0] * more if "logs" in case.options else []
        return False

    return _talked(case, add)


def wrong(case: Case, ranks: list[Talk | None]) -> str:
    """Return how many tokens there are, if they, their mask or log-probabilities are not those that are due."""
    due, found = _due(case), ranks[0]
    return "" if found in (None, due) else f"{_WHERE} {_counted(found)}, due {_counted(due)}"


def right(case: Case, ranks: list[Talk | None]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {_counted(ranks[0])}, as due" if ranks[0] else "this release has no such turns"


def _counted(talk: Talk) -> str:
    """Return how many tokens there are, and how many of them are the model's."""
    return f"{len(talk[0])} ({sum(talk[1])} of the model)"
