"""verl: the tokens of a conversation by its real loop for tools, beside the chat template over the whole of it.

The loop and what builds its turns are real. The tokenizer has a token for each byte, and small templates.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

WARM = ("torch", "ray", "hydra", "tensordict", "transformers")
_BASE, _LOOP = (f"verl.experimental.agent_loop.{it}agent_loop" for it in ("", "tool_"))
_TOKENIZERS = [f"verl.utils.tokenizer{it}" for it in ("", ".chat_template", ".continuous_token", ".tokenizer")]
_REAL = {_BASE, _LOOP, *_TOKENIZERS, f"{_TOKENIZERS[2]}_wiring", "verl.utils.chat_template", "verl.tools.schemas"}
_TOOLS, _USERS = (f"ToolAgentLoop._handle_{it}_state" for it in ("processing_tools", "interacting"))
_MERGES = [f"ContinuousTokenBuilder._merge_{it}_token_ids" for it in ("non_assistant", "context")]
_WHERE, _SAID, _HEARD = "the tokens are", "let me see it", "18 C"
_ASKED, _ANSWER = {"role": "user", "content": "weather?"}, {"role": "assistant", "content": [{"text": _SAID}]}
_SHAPES = {  # what a turn begins with, and what an answer and any other turn end with
    "ChatML": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "two lines": ("<|im_start|>", "<|im_end|>\n\n", "<|im_end|>\n\n"),
    "open users": ("<|im_start|>", "<|im_end|>\n", "\n"),
    "parts": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "no separator": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "brackets": ("\n[INST]", "<|endoftext|>", "[/INST]"),
    "refused chats": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
}
_LOST = [*_SHAPES][:4]
_TEMPLATE = """\
{%- if shape == 'refused chats' and messages | length == 2 %}{{ raise_exception('') }}{% endif %}
{%- if not messages or messages[0].role != 'system' %}{{ begin + 'system\nhelp' + other }}{% endif %}
{%- for it in messages if it.role %}{{ begin + it.role + '\n' }}
{{- (shape != 'parts') * it.content if it.content is string else it.content[-1].text }}
{{- answer if it.role == 'assistant' else other }}{% endfor %}
{%- if add_generation_prompt %}{{ begin + 'assistant\n' }}{% endif %}"""


def _case(name: str, shape: str = "ChatML", lost: bool = True, core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, three rounds of a tool, and answers that end as the template has it."""
    options = {"shape": shape, "of": [_TOOLS, *_MERGES], "may_pass": True, **options}
    ends = (DIFFERS, _WHERE) if lost and shape in _LOST else (PASSED, "")
    return Case(name, Topology(), *ends, options, core, DIFFERS if name == "mid-run" else PASSED)


_USER: dict[str, Any] = {"users": True, "of": [_USERS]}
_LINES: dict[str, Any] = {"logs": True, "stop": "\n<|im_end|>", "due": "\n<|im_end|>\n"}  # an answer that ends with one
CASES = (
    _case("three-tools", core=True),
    _case("three-users", core=True, **_USER),
    _case("no-separator", "no separator", core=True),
    _case("cut-off", stop="", lost=False, beyond=True, core=True),  # upstream's own fix adds one to any answer
    _case("own-newline", own=True, lost=False, beyond=True, core=True),  # and to any turn
    _case("mid-run", due="<|im_end|>", lost=False),
)
GRID = [
    *CASES[:-1],
    _case("cut off in a line", "two lines", stop="\n", lost=False, beyond=True),
    _case("one line of its own", "two lines", own=True, beyond=True),
    _case("at most 38", limit=38, turns=0),  # an answer has 14 tokens, and the turn of a tool 24
    _case("at most 39", limit=39, turns=1, continuous=True),
    _case("continuous", logs=True, continuous=True),
]
for _who, _more in {"tools": {}, "users": _USER}.items():
    GRID += [_case(f"{it}, {_who}", it, beyond=True, **_more) for it in [*_SHAPES][1:]]
    GRID += [_case(f"lines, {_who}", **_LINES, **_more), _case(f"processor, {_who}", shows=True, **_more)]
HELD = {
    "tool_|im(age|g)|video|audio|interaction|reward|should_|isinstance|text": "what a turn says, not where it begins",
    r"^getattr\(self, .processor": "in 0.6.1, it renders no turn of a tool there, and no builder has one in 0.9.0",
    "response_logprobs or": "it is empty only where there are none",
    "except Exception": "is all that a template raises",
}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "version verl": "0.8.0",
        "turns of tools or of a user": True,
        "a chat template that writes more after an answer than the stop token": case.options["shape"] in _LOST,
        "a policy that was trained without this fix": case.name == "mid-run",
    }


def prepare() -> None:
    """Import the loop among stand-ins, none of which takes part."""
    sys.meta_path[:0] = [Around("verl", _REAL, any_module), Around("cachetools", (), any_module)]
    importlib.import_module(_LOOP)


def on_rank(case: Case, rank: int) -> list[list[float]] | None:
    """Return the tokens of three rounds, or fewer at a limit, their mask and log-probabilities; None: no such turns."""
    base, kind, options = importlib.import_module(_BASE), importlib.import_module(_LOOP).ToolAgentLoop, case.options
    handler, is_newest = (_USERS if "users" in options else _TOOLS)[14:], not hasattr(kind, "apply_chat_template")
    is_default = not options.get("function", "").startswith("Tool")  # the builder of models that have none of their own
    is_built = hasattr(kind, "ct_merge_assistant_token") and (is_default or is_newest or "continuous" in options)
    if not hasattr(kind, handler):
        return None
    tokenizer, first, said, _ = _talk(case)
    shows = {"processor": _talk(case)[0]} if "shows" in options and (is_newest or not is_built) else {}
    heard = MagicMock(text=_HEARD, image=[_HEARD] if shows and not is_built else None, video=None)
    if shows and not is_built:  # a template that is not the processor's
        tokenizer.chat_template = tokenizer.chat_template.replace("answer if", "other.strip() if")
    heard.__iter__ = lambda _: iter((heard, None, {}))  # before 0.6, it was alone
    loop: Any = object.__new__(type("Loop", (kind,), {"__getattr__": lambda *_: None, **shows}))
    loop.loop = AsyncMock(**{"run_in_executor.side_effect": lambda _, function: function()})
    loop.tokenizer, loop._call_tool, loop.apply_chat_template_kwargs = tokenizer, AsyncMock(return_value=heard), {}
    loop.response_length, loop.rollout_config = options.get("limit", sys.maxsize), Mock(prompt_length=sys.maxsize)
    loop.system_prompt = tokenizer.apply_chat_template([{}])[: -1 if "own" in options else None]
    loop.turn_separator = getattr(base, "initialize_turn_separator", lambda _: [])(loop.processor or tokenizer)
    loop.enable_continuous_token = is_built
    if is_built:
        family = "qwen35" if not is_default and options["shape"] in _LOST else "default"
        loop.continuous_token_builder = base.create_continuous_token_builder(tokenizer, model_family=family, **shows)
        turn, own = loop.continuous_token_builder._tokenize_tool_group, tokenizer.encode("\n" * ("own" in options))
        loop.continuous_token_builder._tokenize_tool_group = lambda *given, **more: [*own, *turn(*given, **more)]
    data = MagicMock(messages=[_ASKED], prompt_ids=[*first], response_mask=[], response_logprobs=[])
    data.tool_calls, data._active_tool_schemas = [Mock(tool_call_id=None)], None
    data.interaction.generate_response = AsyncMock(return_value=(False, _HEARD, None, {}))
    for _ in range(min(options.get("turns", 3) + 1, 3)):
        data.prompt_ids += said
        data.response_mask += [1] * len(said)
        data.response_logprobs += [-1.0] * len(said) if "logs" in options else []
        data.messages.append(_ANSWER)
        asyncio.run(getattr(loop, handler)(data))
    is_odd = shows and "system" in tokenizer.decode(data.prompt_ids[len(first) :])  # in a tool's turn of 0.6.1
    return None if is_odd else [data.prompt_ids, data.response_mask, data.response_logprobs]


def _talk(case: Case) -> list[Any]:
    """Return a tokenizer of bytes, and the tokens of what is asked first, of what the model says, and of the whole."""
    from transformers import ByT5Tokenizer

    options, shape = case.options, (*_SHAPES[case.options["shape"]], case.options["shape"])
    tokenizer = ByT5Tokenizer(extra_ids=0, additional_special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.image_processor, tokenizer.build_inputs_with_special_tokens = True, lambda ids, _: ids
    tokenizer.chat_template = f"{{% set begin, answer, other, shape = {shape} %}}{_TEMPLATE}"
    heard = {"role": "user" if "users" in options else "tool", "content": _HEARD}
    chats = [[_ASKED, *[_ANSWER, heard] * it] for it in (0, options.get("turns", 3))]
    first, whole = (tokenizer.apply_chat_template(it, tokenize=False, add_generation_prompt=True) for it in chats)
    stop, due = options.get("stop", shape[1].strip()), options.get("due", options.get("stop", shape[1]))
    whole = whole.replace(_SAID + shape[1], _SAID + due)
    return [tokenizer, *map(tokenizer.encode, (first, _SAID + stop, whole))]


def wrong(case: Case, ranks: list[list[list[float]] | None]) -> str:
    """Return how many tokens there are, if they, their mask or log-probabilities are not those that are due."""
    (_, first, said, whole), turns = _talk(case), case.options.get("turns", 3)
    size = (len(whole) - len(first)) // (turns or 1) - len(said)
    mask = ([1] * len(said) + [0] * size) * turns + [1] * len(said) * (turns < 3)
    due = [whole + said * (turns < 3), mask, [-float(it) for it in mask if "logs" in case.options]]
    return "" if ranks[0] in (None, due) else f"{_WHERE} {len(ranks[0][0])}, due {len(due[0])}"


def right(case: Case, ranks: list[list[list[float]] | None]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {len(ranks[0][0])}, as due" if ranks[0] else "this release has no such turns"
