"""verl: the tokens of its real agent loop for tools, beside the chat template over the whole conversation.

The loop, its base class, and what builds a turn are real. The tokenizer has a token for each byte, and small templates
in the shapes of known ones. The model, the tools and the parser of their calls are scripts.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import sys
from functools import cache
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "ray", "hydra", "tensordict", "transformers")
_LOOPS, _TOKENIZER = "verl.experimental.agent_loop", "verl.utils.tokenizer"
_LOOP, _BASE = f"{_LOOPS}.tool_agent_loop", f"{_LOOPS}.agent_loop"
_REAL = (
    *(_LOOP, _BASE, "verl.tools.schemas", "verl.utils.chat_template", _TOKENIZER),
    *(
        f"{_TOKENIZER}.{it}"
        for it in ("chat_template", "continuous_token", "continuous_token_wiring", "deepseek", "tokenizer")
    ),
)
_BUILDER = "ContinuousTokenBuilder"
_TOOLS, _USERS = ("ToolAgentLoop._handle_processing_tools_state", "ToolAgentLoop._handle_interacting_state")
_RUN = "ToolAgentLoop.run"
_ANY = [_TOOLS, _RUN, *(f"{_BUILDER}._merge_{it}_token_ids" for it in ("non_assistant", "context"))]
_WHERE, _MOST = "the tokens are", 10**6
_FIRST = 7  # so long is an answer
_START, _HEARD = [{"role": "user", "content": "weather?"}], "18 C"
Rollout = tuple[list[list[int]], list[int], list[int], list[int], "list[float] | None"]
"""What the model is asked with, each time; the prompt, the response, its mask, its log-probabilities."""
_SHAPES = {  # what a turn begins with, and what an answer and any other turn end with
    "ChatML": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "thinking": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "two lines": ("<|im_start|>", "<|im_end|>\n\n", "<|im_end|>\n\n"),
    "open users": ("<|im_start|>", "<|im_end|>\n", "\n"),
    "no separator": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "line before": ("\n<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "brackets": ("[INST]", "</s>", "[/INST]"),
}
_LOST = ("ChatML", "thinking", "two lines", "open users")
_TEMPLATE = """\
{%- set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endfor %}
{%- macro text(m) %}{% for it in m.content %}{{ '<|image|>' if it.type == 'image' else it.text or it }}{% endfor %}
{%- endmacro %}
{%- if not messages or messages[0].role != 'system' %}{{ 'BEGINsystem\nhelpOTHER' }}{% endif %}
{%- for m in messages if m.role %}{{ 'BEGIN' + m.role + '\n' }}
{%- if m.role != 'assistant' %}{{ text(m) + 'OTHER' }}
{%- else %}{{ '<think></think>' if thinks and '</think>' not in m.content }}
{%- if thinks and not keeps and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] + 'ANSWER' }}
{%- else %}{{ m.content + 'ANSWER' }}{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ 'BEGINassistant\n' }}{% endif %}"""


def _case(name: str, shape: str = "ChatML", core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, three rounds of a tool; the model stops with the end that the template gives it."""
    options = {"shape": shape, "rounds": 3, "of": _ANY, "may_pass": True, **options}
    is_lost = shape in _LOST and "stop" not in options and options["rounds"] and options.get("limit") != _FIRST
    ends = (DIFFERS, _WHERE) if is_lost and "due" not in options else (PASSED, "")
    return Case(name, Topology(), *ends, options, core, DIFFERS if "due" in options else PASSED)


_USER: dict[str, Any] = {"users": True, "of": [_USERS]}
_OTHER = {"stop": "<|endoftext|>", "beyond": True}  # upstream's own fix adds the newline after any token
CASES = (
    _case("three-tools", core=True),
    _case("three-users", core=True, **_USER),
    _case("one-tool", rounds=1),
    _case("image", image=True, of=[_TOOLS]),
    _case("no-separator", "no separator", core=True),
    _case("line-before", "line before"),
    _case("brackets", "brackets", beyond=True),
    _case("no-tool", rounds=0, core=True),
    _case("cut-off", stop="", beyond=True, core=True),
    _case("another-end", **_OTHER),
    _case("mid-run", due="<|im_end|>"),
)
GRID = [
    *CASES[:-1],
    *(_case(f"{shape}, users", shape, **_USER, beyond=shape == "brackets") for shape in _SHAPES),
    *(_case(shape, shape, beyond=shape in ("open users", "two lines")) for shape in _LOST[1:]),
    *(_case(f"{end or 'cut off'}, users", stop=end, **_USER) for end in ("", "<|endoftext|>")),
    *(_case(f"at most {limit}", limit=limit) for limit in (_FIRST, 31, 32, 62)),
    _case("log-probabilities", logs=True, of=[it for it in _ANY if it != _RUN]),
    _case("log-probabilities, users", logs=True, **_USER),
    _case("processor", processor=True, of=[_TOOLS]),
    _case("processor, users", processor=True, **_USER),
    _case("continuous tokens", continuous=True, of=[_TOOLS]),
]
HELD: dict[str, str] = {}
YOURS = CASES[0]._replace(name="yours", core=False)


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a template of the proof's own, in the shape of Qwen's: yours may write nothing after an answer"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    options = case.options
    return {
        "version verl": "0.8.0",
        "a dataset or a default_agent_loop with tool_agent": options["rounds"] > 0,
        "a chat template that writes something between two turns, as ChatML does": options["shape"] in _LOST,
        "answers that end as the template ends them": "stop" not in options,
        "it goes on with a policy that was trained without this fix": "due" in options,
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function has to do with turns; from 0.6 on, ``run`` leaves them to others."""
    return function.name != "run" or "system_prompt" in ast.unparse(function)


def prepare() -> None:
    """Import the loop among stand-ins, none of which takes part."""
    sys.meta_path.insert(0, Around("verl", _REAL, any_module))
    if not importlib.util.find_spec("cachetools"):
        sys.meta_path.insert(0, Around("cachetools", (), any_module))
    trace: Any = importlib.import_module("verl.utils.rollout_trace")
    trace.rollout_trace_op = lambda function: function
    importlib.import_module(_LOOP)


def on_rank(case: Case, rank: int) -> Rollout | None:
    """Roll out one conversation. Return nothing where a release has no such turns, or where others build them."""
    kind, options = importlib.import_module(_LOOP).ToolAgentLoop, case.options
    script = _Script(case, is_old=not hasattr(kind, _TOOLS[14:]))
    is_default = not options.get("function", "").startswith("Tool")  # the builder of models without one of their own
    is_built = hasattr(kind, "ct_merge_assistant_token") and (
        is_default or "continuous" in options or not hasattr(kind, "apply_chat_template")
    )
    has_no_users = options.get("users") and not hasattr(kind, _USERS[14:])
    if not options.get("feature", True) or has_no_users or (_shows(case) and (is_built or script.is_old)):
        return None
    family = "default" if is_default or options["shape"] not in _LOST else "qwen"
    return asyncio.run(_rolled_out(case, kind, script, family if is_built else ""))


async def _rolled_out(case: Case, kind: Any, script: _Script, family: str) -> Rollout:
    """Roll out with the builder of a family of models, if one is named."""
    base: Any = importlib.import_module(_BASE)
    options, loop, tokenizer = case.options, kind.__new__(kind), _tokenizer(case.options["shape"])
    given = {"raw_prompt": [*_START], "extra_info": {"interaction_kwargs": {"name": "it"}}}
    vars(loop).update(tokenizer=tokenizer, loop=asyncio.get_running_loop(), tool_parser=script, server_manager=script)
    vars(loop).update(dict.fromkeys(("max_user_turns", "max_assistant_turns", "tool_schemas", "processor")), tools={})
    vars(loop).update(max_parallel_calls=9, response_length=options.get("limit", _MOST), tool_parser_name="hermes")
    vars(loop).update(
        rollout_config=SimpleNamespace(prompt_length=_MOST, full_determinism=False), enable_continuous_token=False
    )
    vars(loop).update(apply_chat_template_kwargs={}, mm_processor_kwargs={}, interaction_config_file=script.users)
    vars(loop).update(interaction_map={"it": script}, _call_tool=script.called)
    vars(loop).update(process_vision_info=script.start_interaction, process_multi_modal_info=script.start_interaction)
    if _shows(case):
        loop.processor = _Processor(tokenizer)
    if family:
        builder = base.create_continuous_token_builder(tokenizer, model_family=family)
        loop.continuous_token_builder, loop.enable_continuous_token = builder, True
    elif first := getattr(base, "initialize_system_prompt", None):
        loop.system_prompt = first(loop.processor or tokenizer)
        loop.turn_separator = getattr(base, "initialize_turn_separator", lambda _: [])(loop.processor or tokenizer)
    else:
        loop.system_prompt = tokenizer.apply_chat_template([{}], tokenize=True)
    done = await loop.run(sampling_params={}, **({"messages": [*_START]} if script.is_old else given))
    logs = getattr(done, "response_logprobs", None)
    return script.asked, done.prompt_ids, done.response_ids, done.response_mask, logs


def _shows(case: Case) -> bool:
    return not {"image", "processor"}.isdisjoint(case.options)


class _Script:
    """The model, which calls a tool in each of so many rounds; the tool, a user, and the parser of calls."""

    stop_token_ids = ()

    def __init__(self, case: Case, is_old: bool) -> None:
        self.case, self.is_old, self.asked, self.users = case, is_old, list[list[int]](), case.options.get("users")

    async def generate(self, prompt_ids: list[int], **_: Any) -> Any:
        ids, at = _said(self.case, len(self.asked)), len(self.asked)
        self.asked.append([*prompt_ids])
        logs = [-1.0 - at] * len(ids) if "logs" in self.case.options else None
        empty: dict[str, Any] = {"routed_experts": None, "num_preempted": None, "extra_fields": {}}
        return ids if self.is_old else SimpleNamespace(token_ids=ids, log_probs=logs, **empty)

    async def extract_tool_calls(self, *_: Any) -> tuple[str, list[Any]]:
        is_last = self.users or len(self.asked) > self.case.options["rounds"]
        call = SimpleNamespace(name="weather", arguments="{}", tool_call_id=None)
        return "", [] if is_last else [call]

    async def called(self, *_: Any) -> Any:
        image = [object()] if "image" in self.case.options else None
        return (
            {"role": "tool", "content": _HEARD}
            if self.is_old
            else (SimpleNamespace(text=_HEARD, image=image, video=None), None, {})
        )

    async def generate_response(self, *_: Any, **__: Any) -> tuple[bool, str, None, dict[str, Any]]:
        return len(self.asked) == self.case.options["rounds"], _HEARD, None, {}

    async def start_interaction(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


class _Processor:
    """A processor, for which an image is three tokens."""

    image_processor = object()

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.apply_chat_template = tokenizer.apply_chat_template

    def __call__(self, text: list[str], **_: Any) -> dict[str, Any]:
        ids = self.tokenizer.encode(text[0].replace("<|image|>", 3 * "<|image|>"), add_special_tokens=False)
        return {"input_ids": importlib.import_module("torch").tensor([ids])}


@cache
def _tokenizer(shape: str) -> Any:
    """Return a tokenizer with a token for each byte, and a template of this shape."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    begin, answer, other = (it.replace("\n", "\\n") for it in _SHAPES[shape])
    vocabulary = {each: at for at, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=_SHAPES[shape][1].strip())
    special = ["<|im_start|>", "<|im_end|>", "</s>", "<|endoftext|>", "<|image|>"]
    made.add_special_tokens({"additional_special_tokens": special})
    thinks = f"{{%- set thinks = {str(shape == 'thinking').lower()} %}}"
    made.chat_template = thinks + _TEMPLATE.replace("BEGIN", begin).replace("ANSWER", answer).replace("OTHER", other)
    return made


def _answer(case: Case, at: int) -> str:
    return f"<think>hm</think>call {at}" if case.options["shape"] == "thinking" else f"call {at}"


def _said(case: Case, at: int) -> list[int]:
    """Return the tokens of an answer, with the one that the model stops with."""
    stop = case.options.get("stop", _SHAPES[case.options["shape"]][1].strip())
    ids: list[int] = _tokenizer(case.options["shape"]).encode(_answer(case, at) + stop, add_special_tokens=False)
    return ids


def _whole(case: Case, messages: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of a whole conversation; answers that end otherwise than the template has it stay so."""
    options, tokenizer = case.options, _tokenizer(case.options["shape"])
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, keeps=True)
    end = _SHAPES[options["shape"]][1]
    for at in range(options["rounds"]):
        text = text.replace(_answer(case, at) + end, _answer(case, at) + options.get("due", options.get("stop", end)))
    ids: list[int] = tokenizer.encode(text.replace("<|image|>", 3 * "<|image|>"), add_special_tokens=False)
    return ids


def _due(case: Case) -> Rollout:
    """Return the rollout as the template over the whole conversation has it."""
    options, messages = case.options, [*_START]
    asked, mask, logs = [_whole(case, messages)], list[int](), list[float]()
    image = [{"type": "image"}] if "image" in options else []
    heard = {"role": "user" if options.get("users") else "tool", "content": [*image, {"type": "text", "text": _HEARD}]}
    while True:
        said = _said(case, at := len(asked) - 1)
        mask, logs = mask + [1] * len(said), logs + [-1.0 - at] * len(said)
        ids = asked[-1] + said
        if len(mask) >= options.get("limit", _MOST) or at == options["rounds"]:
            break
        messages += {"role": "assistant", "content": _answer(case, at)}, heard
        whole = _whole(case, messages)
        more = len(whole) - len(ids)
        if not options.get("users") and len(mask) + more >= options.get("limit", _MOST):
            break
        mask, logs, ids = mask + [0] * more, logs + [0.0] * more, whole
        if options.get("users") and at + 1 == options["rounds"]:
            break
        asked.append(ids)
    start, limit = len(asked[0]), options.get("limit", _MOST)
    response = ids[start:][:limit]
    return asked, asked[0], response, mask[:limit], logs[:limit] if "logs" in options else None


def wrong(case: Case, ranks: Sequence[Rollout | None]) -> str:
    """Return where the rollout is another one than is due; empty where it is not."""
    found, due = ranks[0], _due(case)
    if found in (None, due):
        return ""
    return f"{_WHERE} {_count(found)}, due {_count(due)}; the first that differs is {_first(case, found, due)}"


def right(case: Case, ranks: Sequence[Rollout | None]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {_count(ranks[0])}, as due" if ranks[0] else "this release has no such turns"


def _count(rollout: Rollout) -> int:
    return len(rollout[1]) + len(rollout[2])


def _first(case: Case, found: Rollout, due: Rollout) -> str:
    """Return the first token that differs, and the one that is due."""
    pairs = zip_longest(*(it[1] + it[2] for it in (found, due)))
    texts = ([_tokenizer(case.options["shape"]).decode(one) if one else "" for one in it] for it in pairs)
    return next((f"{one!r} for {other!r}" for one, other in texts if one != other), "in the mask")
