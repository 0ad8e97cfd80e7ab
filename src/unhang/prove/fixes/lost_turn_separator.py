"""verl: the tokens of its real agent loop for tools, beside the chat template over the whole conversation.

The loop and what builds its turns are real. The tokenizer has a token for each byte, and small templates in the shapes
of known ones. The model, the tool, the user and the parser of calls are scripts.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

WARM = ("torch", "ray", "hydra", "tensordict", "transformers")
_BASE, _LOOP, _TOKENIZER = (
    *(f"verl.experimental.agent_loop.{it}agent_loop" for it in ("", "tool_")),
    "verl.utils.tokenizer",
)
_REAL = {_BASE, _LOOP, _TOKENIZER, "verl.utils.chat_template", "verl.tools.schemas"}
_REAL |= {f"{_TOKENIZER}.{it}" for it in ("chat_template", "continuous_token", "continuous_token_wiring", "tokenizer")}
_TOOLS, _USERS = (f"ToolAgentLoop._handle_{it}_state" for it in ("processing_tools", "interacting"))
_MERGES = [f"ContinuousTokenBuilder._merge_{it}_token_ids" for it in ("non_assistant", "context")]
_WHERE, _HEARD = "the tokens are", "18 C"
_START: list[dict[str, Any]] = [{"role": "user", "content": "weather?"}]
_ANSWER, _MOST = 24, 10**6  # tokens
_MORE = "a chat template that writes more after an answer than the stop token"
_SHAPES = {  # what a turn begins with, and what an answer and any other turn end with
    "ChatML": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "thinking": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
    "two lines": ("<|im_start|>", "<|im_end|>\n\n", "<|im_end|>\n\n"),
    "open users": ("<|im_start|>", "<|im_end|>\n", "\n"),
    "no separator": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "line before": ("\n<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "brackets": ("[INST]", "</s>", "[/INST]"),
    "refused answers": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "parts": ("<|im_start|>", "<|im_end|>\n", "<|im_end|>\n"),
}
_LOST = [*[*_SHAPES][:4], "parts"]
_TEMPLATE = """\
{%- if REFUSES and messages[-1].role == 'assistant' %}{{ raise_exception('no question') }}{% endif %}
{%- if not messages or messages[0].role != 'system' %}{{ 'BEGINsystem\nhelpOTHER' }}{% endif %}
{%- for m in messages if m.role %}{{ 'BEGIN' + m.role + '\n' }}
{%- if m.content is string %}{% set said = '' if PARTS else m.content %}{% else %}{% set said %}
{%- for it in m.content %}{{ '<|image|>' if it.type == 'image' else it.text }}{% endfor %}{% endset %}{% endif %}
{%- set is_old = messages[loop.index:] | selectattr('role', 'equalto', 'user') | list %}
{%- if m.role != 'assistant' %}{{ said + 'OTHER' }}
{%- else %}{{ (said.split('</think>')[-1] if FORGETS and not keeps and is_old else said) + 'ANSWER' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'BEGINassistant\n' }}{% endif %}"""
Rollout = tuple[list[list[int]], list[int], list[int], "list[float] | None"]
"""What the model is asked with, each time; the response, its mask, and its log-probabilities."""


def _case(name: str, shape: str = "ChatML", core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, three rounds of a tool, and answers that end as the template has it."""
    options = {"shape": shape, "rounds": 3, "of": [_TOOLS, *_MERGES], "may_pass": True, **options}
    is_lost = (
        shape in _LOST and options["rounds"] and not {"stop", "due"} & {*options} and options.get("limit") != _ANSWER
    )
    ends = (DIFFERS, _WHERE) if is_lost else (PASSED, "")
    return Case(name, Topology(), *ends, options, core, DIFFERS if name == "mid-run" else PASSED)


_USER: dict[str, Any] = {"users": True, "of": [_USERS]}
_KINDS: dict[str, dict[str, Any]] = {"tools": {}, "users": _USER}
CASES = (
    _case("three-tools", core=True),
    _case("three-users", core=True, **_USER),
    _case("image", shows=True, image=True),
    _case("no-separator", "no separator", core=True),
    _case("brackets", "brackets", beyond=True),  # upstream's own fix takes the end of a user's turn for the separator
    _case("cut-off", stop="", beyond=True, core=True),  # it adds one to any answer
    _case("no-tool", rounds=0),
    _case("mid-run", due="<|im_end|>"),
)
_CONTINUOUS: dict[str, Any] = {"rounds": 3, "logs": True, "limit": 96}
GRID = [
    *CASES[:-1],
    *(_case(f"{shape}, users", shape, **_USER, beyond=shape == "brackets") for shape in [*_SHAPES][1:8]),
    *(
        _case(shape, shape, beyond=shape in _LOST[2:])
        for shape in ("thinking", "two lines", "open users", "line before")
    ),
    _case("refused answers", "refused answers", beyond=True, of=[_TOOLS]),  # the builders ask for such a chat, too
    _case("parts", "parts", shows=True, image=True),
    _case("cut off in a line", "two lines", stop="\n", beyond=True),
    _case("rule of its own", own=True, due="<|im_end|>\n", of=_MERGES),
    *(_case(f"another end, {who}", stop="<|endoftext|>", beyond=True, **more) for who, more in _KINDS.items()),
    *(_case(f"at most {limit}", limit=limit) for limit in (_ANSWER, 47, 48, 49)),
    *(_case(f"log-probabilities, {who}", logs=True, **more) for who, more in _KINDS.items()),
    *(_case(f"processor, {who}", shows=True, **more) for who, more in _KINDS.items()),
    *(_case(f"continuous, {it}", continuous=True, of=[_TOOLS], **{it: value}) for it, value in _CONTINUOUS.items()),
]
_SAYS = "tool_|im(age|g)|video|audio|interaction|reward|should_terminate|isinstance|text"
HELD = {
    _SAYS: "what a turn says, and not where it begins",
    "^self.processor or": "in 0.6.1, it renders no turn of a tool there",
    r"^getattr\(self, .processor": "no builder has one in 0.9.0",
    "response_logprobs or": "it is empty only where there are none",
}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    options = case.options
    return {
        "version verl": "0.8.0",
        "turns of tools or of a user": options["rounds"] > 0 and options.get("limit") != _ANSWER,
        _MORE: options["shape"] in _LOST and "stop" not in options,
        "a policy that was trained without this fix": case.name == "mid-run",
    }


def prepare() -> None:
    """Import the loop among stand-ins, none of which takes part."""
    sys.meta_path.insert(0, Around("verl", _REAL, any_module))
    if not importlib.util.find_spec("cachetools"):
        sys.meta_path.insert(0, Around("cachetools", (), any_module))
    trace: Any = importlib.import_module("verl.utils.rollout_trace")
    trace.rollout_trace_op = lambda function: function
    importlib.import_module(_LOOP)


def on_rank(case: Case, rank: int) -> Rollout | None:
    """Roll out one conversation; nothing if a release has none of that kind."""
    kind, options = importlib.import_module(_LOOP).ToolAgentLoop, case.options
    is_default = not options.get("function", "").startswith("Tool")  # the builder of models that have none of their own
    is_newest, needed = not hasattr(kind, "apply_chat_template"), _USERS if "users" in options else _TOOLS
    is_built = hasattr(kind, "ct_merge_assistant_token") and (is_default or "continuous" in options or is_newest)
    if not hasattr(kind, needed[14:]) or ("shows" in options and is_built and not is_newest):
        return None
    family = "default" if is_default or options["shape"] not in _LOST else "qwen"
    family = {"qwen": "qwenvl", "default": "vldefault"}[family] if "shows" in options else family
    return asyncio.run(_rolled_out(case, kind, family if is_built else ""))


async def _rolled_out(case: Case, kind: Any, family: str) -> Rollout | None:
    """Roll out with the builder of a family of models, if one is named."""
    base: Any = importlib.import_module(_BASE)
    options, asked, tokenizer = case.options, list[list[int]](), _tokenizer(case.options["shape"])
    heard = type("Heard", (SimpleNamespace,), {"__iter__": lambda self: iter((self, None, {}))})  # before 0.6, alone

    async def generate(prompt_ids: list[int], **_: Any) -> Any:
        asked.append([*prompt_ids])
        ids = _said(case, len(asked) - 1)
        more: dict[str, Any] = {"routed_experts": None, "num_preempted": None, "extra_fields": {}}
        logs = [-1.0 * len(asked)] * len(ids) if "logs" in options else None
        return SimpleNamespace(token_ids=ids, log_probs=logs, **more)

    async def parsed(*_: Any) -> Any:
        call = SimpleNamespace(name="weather", arguments="{}", tool_call_id=None)
        return "", [] if "users" in options or len(asked) > options["rounds"] else [call]

    async def called(*_: Any) -> Any:
        return heard(text=_HEARD, image=[object()] if "image" in options else None, video=None)

    async def replied(*_: Any, **__: Any) -> Any:
        return len(asked) == options["rounds"], _HEARD, None, {}

    async def nothing(*_: Any, **__: Any) -> Any:
        return {}

    async def at_once(_: None, function: Any) -> Any:
        return function()

    def processed(text: list[str], **_: Any) -> Any:
        return {"input_ids": importlib.import_module("torch").tensor([_encoded(case, text[0])])}

    loop: Any = object.__new__(type("Loop", (kind,), {"__getattr__": lambda *_: None}))
    processor = Mock(side_effect=processed, spec=["apply_chat_template", "image_processor"])
    processor.apply_chat_template = tokenizer.apply_chat_template
    shows = {"processor": processor} if "shows" in options else {}
    user = SimpleNamespace(generate_response=replied, start_interaction=nothing)
    vars(loop).update(
        tokenizer=tokenizer, loop=SimpleNamespace(run_in_executor=at_once), tools={}, max_parallel_calls=9,
        server_manager=SimpleNamespace(generate=generate), response_length=options.get("limit", _MOST),
        tool_parser=SimpleNamespace(extract_tool_calls=parsed, stop_token_ids=()), _call_tool=called,
        interaction_config_file="users" in options, interaction_map={"it": user}, enable_continuous_token=bool(family),
        apply_chat_template_kwargs={}, mm_processor_kwargs={}, process_vision_info=nothing,
        rollout_config=SimpleNamespace(prompt_length=_MOST, full_determinism=False), process_multi_modal_info=nothing,
        **shows,
    )  # fmt: skip
    if first := getattr(base, "initialize_system_prompt", None):
        loop.system_prompt = first(loop.processor or tokenizer)
    else:
        loop.system_prompt = tokenizer.apply_chat_template([{}], tokenize=True)
    loop.turn_separator = getattr(base, "initialize_turn_separator", lambda _: [])(loop.processor or tokenizer)
    if family:
        loop.continuous_token_builder = base.create_continuous_token_builder(tokenizer, model_family=family, **shows)
    if "own" in options:  # a builder of the user's own, which puts the newline before the turn itself
        builder = loop.continuous_token_builder
        merge = next(it for it in (getattr(builder, name[23:], None) for name in _MERGES) if it)
        line = _encoded(case, "\n")
        setattr(builder, merge.__name__, lambda ids, turn, **more: merge(ids, [*line, *turn], **more))
    about = {"interaction_kwargs": {"name": "it"}}
    done = await loop.run(sampling_params={}, raw_prompt=[*_START], extra_info=about)
    if "shows" in options and "system" in tokenizer.decode(done.response_ids):
        return None  # in 0.6.1, a tool's turn has the system prompt, too
    return asked, done.response_ids, done.response_mask, done.response_logprobs


@cache
def _tokenizer(shape: str) -> Any:
    """Return a tokenizer with a token for each byte, and a template of this shape."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_ = Tokenizer(models.BPE({it: at for at, it in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "</s>", "<|endoftext|>", "<|image|>"]
    begin, answer, other = _SHAPES[shape]
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token=answer.strip(), additional_special_tokens=special)
    made.chat_template = _TEMPLATE
    words = {"FORGETS": "thinking", "REFUSES": "refused answers", "PARTS": "parts"}
    words = {name: str(shape == of).lower() for name, of in words.items()}
    for name, text in {**words, "BEGIN": begin, "ANSWER": answer, "OTHER": other}.items():
        made.chat_template = made.chat_template.replace(name, text)
    return made


def _encoded(case: Case, text: str) -> list[int]:
    """Return the tokens of a text, in which an image has three."""
    ids: list[int] = _tokenizer(case.options["shape"]).encode(text.replace("<|image|>", "<|image|>" * 3))
    return ids


def _said(case: Case, at: int) -> list[int]:
    """Return the tokens of an answer, with the one that the model stops with."""
    end = _SHAPES[case.options["shape"]][1].strip()
    return _encoded(case, f"<think>hm</think>call {at}{case.options.get('stop', end)}")


def _whole(case: Case, messages: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of a whole conversation, in which an answer ends as the case has it."""
    options, end = case.options, _SHAPES[case.options["shape"]][1]
    template = _tokenizer(options["shape"]).apply_chat_template
    text: str = template(messages, tokenize=False, add_generation_prompt=True, keeps=True)
    for at in range(options["rounds"]):
        text = text.replace(f"call {at}{end}", f"call {at}{options.get('due', options.get('stop', end))}")
    return _encoded(case, text)


def _due(case: Case) -> Rollout:
    """Return the rollout as the template has the conversation, whole at each turn."""
    options, messages, asked, mask, logs = case.options, [*_START], list[list[int]](), list[int](), list[float]()
    parts = [{"type": "image"}] * ("image" in options) + [{"type": "text", "text": _HEARD}]
    ids, limit, has_users = _whole(case, messages), options.get("limit", _MOST), "users" in options
    for at in range(options["rounds"] + (not has_users)):
        asked.append(ids)
        said = _said(case, at)
        ids, mask, logs = ids + said, mask + [1] * len(said), logs + [-1.0 - at] * len(said)
        answer = [{"type": "text", "text": f"<think>hm</think>call {at}"}]
        messages += {"role": "assistant", "content": answer}, {
            "role": "user" if has_users else "tool", "content": parts,
        }  # fmt: skip
        whole = _whole(case, messages)
        more = len(whole) - len(ids)
        if len(mask) >= limit or at == options["rounds"] or (not has_users and len(mask) + more >= limit):
            break
        ids, mask, logs = whole, mask + [0] * more, logs + [0.0] * more
    response = ids[len(asked[0]) :][:limit]
    return asked, response, mask[:limit], logs[:limit] if "logs" in options else None


def wrong(case: Case, ranks: list[Rollout | None]) -> str:
    """Return how many tokens the rollout has, if they, their mask or log-probabilities are not those that are due."""
    due, found = _due(case), ranks[0]
    return "" if found in (None, due) else f"{_WHERE} {_counted(found)}, due {_counted(due)}"


def right(case: Case, ranks: list[Rollout | None]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {_counted(ranks[0])}, as due" if ranks[0] else "this release has no such turns"


def _counted(rollout: Rollout) -> str:
    """Return how many tokens were there in the end, and how many of them count."""
    return f"{len(rollout[0][0]) + len(rollout[1])} ({sum(rollout[2])} of the model)"
