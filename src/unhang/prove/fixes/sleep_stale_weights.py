"""trl: the weights with which vLLM samples in each generation, beside those that the trainer has then.

Real are a turn of the trainer, ``VLLMGeneration`` with its sync of the weights, and the rollouts of OpenEnv. vLLM needs
a GPU: a stand-in does what its documentation says. What else the modules import takes no part, and is one, too. Of
DeepSpeed's ZeRO-3, all ranks gather a weight for a sync: so does the stand-in, by a real collective.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional
from unittest.mock import MagicMock

from ..cases import DIFFERS, HUNG, PASSED, Case, Topology
from ..ranks.around import Around, Filled, any_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

_ENGINE, _OPENENV = "trl.generation.vllm_generation", "trl.experimental.openenv.utils"
_TRAINERS = {kind: f"trl.trainer.{kind.lower()}_trainer" for kind in ("GRPO", "RLOO")}
_AROUND = "trl transformers accelerate datasets huggingface_hub pandas jinja2 requests peft vllm deepspeed".split()
_GENERATE, _SYNC, _TURN = "VLLMGeneration.generate", "VLLMGeneration.sync_weights", "Trainer._generate_single_turn"
_ROLLOUT = "_generate_rollout_completions_colocate"
_AS_IS: dict[str, Any] = dict.fromkeys(("profiling_decorator", "maybe_apply_chat_template"), lambda it, *_: it)
_LOST, _UNSENT = -99.0, 7.0
"""A weight after a sleep at level 2; and one that only the checkpoint has, not the trainer."""
_TAGS = "weights", "kv_cache"


def _case(name: str, *steps: int, core: bool = False, ranks: int = 1, job: str = "GRPO", **more: Any) -> Case:
    """Return a case: the steps that the optimizer has done before each generation."""
    functions = {"OpenEnv": [_ROLLOUT], "sync": [_SYNC]}.get(job, [_GENERATE, f"{job}{_TURN}"])
    more = {"of": functions, "sleeps": True, "may_pass": True, **more, "steps": steps, "job": job}
    is_hit = more["sleeps"] and "is_server" not in more
    return Case(name, Topology(dp=ranks), *((DIFFERS, "samples") if is_hit else (PASSED, "")), more, core)


CASES = (
    _case("each-step", 0, 1, 2, 3, core=True),
    _case("evaluation", 1, 1, 2, 2, core=True),
    _case("resumed", 10, 20, 20),
    _case("rloo", 1, 1, 2, job="RLOO", core=True),
    _case("openenv", 0, 1, 1, job="OpenEnv", core=True),
    _case("zero3-2", 0, 1, 1, ranks=2, is_sharded=True, core=True),
    _case("tensor-parallel-2", 0, 1, 1, ranks=2, is_parallel=True, of=[_GENERATE]),
    _case("turns-2", 1, 1, 2, ranks=2, is_uneven=True, core=True),
    _case("awake", 0, 1, 1, sleeps=False, core=True),
    _case("turns-zero3-2", 1, 1, 2, ranks=2, is_uneven=True, is_sharded=True)._replace(patched=HUNG),
    _case("own-sleep", 1, 1, own=True)._replace(patched=DIFFERS),
)
GRID = [
    *CASES[:-2],
    _case("no reload, as on an NPU", 0, 1, 1, is_npu=True, of=[_GENERATE]),
    _case("two ranks of OpenEnv", 0, 1, 1, job="OpenEnv", ranks=2, is_parallel=True),
    *(_case(f"{job}, awake", 0, 1, 1, job=job, sleeps=False) for job in ("RLOO", "OpenEnv")),
    _case("a sync, awake", 0, 1, 2, job="sync", sleeps=False),
    _case("a sync", 0, 1, 2, job="sync"),
    _case("a sync, on an NPU", 0, 1, 2, job="sync", is_npu=True),
    _case("what no sync sends", 0, 1, 2, job="sync", ranks=2, is_sharded=True, beyond=True),
    _case("before any sync", 0, 0, loaded=0, of=[_GENERATE]),
    _case("a sync, and no sleep after it", 0, 1, 2, job="sync", stays=True),
    _case("a server", 0, 1, 2, is_server=True, of=[_GENERATE, _SYNC]),
    _case("a reload fails", 0, 0, 1, fails=True, of=[_GENERATE, _SYNC], beyond=True),
    _case("a reload fails in OpenEnv", 0, 0, 1, fails=True, job="OpenEnv", beyond=True),
]
HELD = {
    r"^(?!.*(sleep|_loaded_step)).*": "of what is sampled how, and of how a sync sends the weights",
}
YOURS = CASES[1]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    given = case.options
    return {
        **{"use_vllm": True, "vllm_enable_sleep_mode": given["sleeps"]},
        "vllm_mode": "server" if "is_server" in given else "colocate",
        **{"version trl": "1.9.2", "a step generates more than once": True},
        "ranks differ in their turns under FSDP or ZeRO-3": "is_uneven" in given and "is_sharded" in given,
        "code of your own lets vLLM sleep": "own" in given,
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether a function lets the weights sleep at level 2, or sends them."""
    return function.name == "sync_weights" or "sleep(level=2)" in ast.unparse(function)


def prepare() -> None:
    """Let the modules that are real import stand-ins for all others."""
    real = {_ENGINE, _OPENENV, *_TRAINERS.values()}
    sys.meta_path[:0] = [Around(package, real, _stand_in) for package in _AROUND]
    older = {**_AS_IS, "Optional": Optional, "re": MagicMock(), "version": SimpleNamespace(parse=_parts)}
    older |= dict.fromkeys(("is_conversational", "sanitize_logprob"), _nothing)
    for name in filter(importlib.util.find_spec, real):  # what commits before a release import there
        vars(importlib.import_module(name)).update(older)


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _stand_in(name: str) -> ModuleType:
    """Return a module with every name. What asks whether something is so or there says no, but of vLLM."""
    others = any_module(name)
    made = Filled(name, lambda inner: _nothing if inner.startswith("is_") else getattr(others, inner))
    deepspeed = SimpleNamespace(GatheredParameters=_gathered)
    vars(made).update(_AS_IS, __version__="5.0.0", is_vllm_available=lambda: True, LLM=_Engine, zero=deepspeed)
    return made


def _nothing(*_: Any, **__: Any) -> None:
    """Take anything; return nothing."""


class _Done(Exception):
    """A generation is done. What becomes of its tokens takes no part."""


class _Failed(RuntimeError):
    """The checkpoint cannot be read."""


class _Engine:
    """vLLM: it forgets its weights at level 2, reloads them from the checkpoint, and drops what comes in its sleep."""

    is_npu = fails = False

    def __init__(self, **_: Any) -> None:
        self.weights, self.asleep = {"weight": 0.5, "unsent": _UNSENT}, set[str]()
        self.sent, self.has_read, self.sampled = 0, False, list[tuple[float, float | None]]()
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self.load))
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine, self.reset_prefix_cache = SimpleNamespace(model_executor=worker), _nothing

    def sleep(self, level: int = 1) -> None:
        self.asleep, self.weights = {*_TAGS}, dict.fromkeys(self.weights, _LOST) if level == 2 else self.weights

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self.asleep -= {*(tags or _TAGS)}

    def collective_rpc(self, method: str) -> None:
        if self.is_npu or method != "reload_weights":
            raise NotImplementedError
        self.has_read = True
        if self.fails and self.sampled:
            raise _Failed
        self._take({"weight": 0.5, "unsent": _UNSENT})

    def load(self, weights: Sequence[tuple[str, Any]]) -> None:
        self.sent += 1
        self._take({name: float(it) for name, it in weights})

    def _take(self, weights: dict[str, float]) -> None:
        self.weights |= {} if "weights" in self.asleep else weights

    def generate(self, prompts: Sequence[Any], **_: Any) -> list[Any]:
        if "kv_cache" in self.asleep:
            raise RuntimeError("vLLM samples without a cache")
        self.sampled.append((self.weights["weight"], self.weights.get("unsent")))
        answer = SimpleNamespace(token_ids=[0], logprobs=[{0: SimpleNamespace(logprob=-1.0, rank=1)}], text="")
        return [SimpleNamespace(prompt_token_ids=[0], outputs=[answer]) for _ in prompts]


class _Server(_Engine):
    """The client of a server of vLLM. Nothing sleeps there."""

    def update_named_param(self, *weight: Any) -> None:
        self.load([weight])

    def update_named_params(self, _: Any, weights: Any) -> None:  # from 1.11 on
        for weight in weights:
            self.load([weight])

    def generate(self, prompts: Sequence[Any], **_: Any) -> list[Any]:
        super().generate(prompts)
        raise _Done


@contextlib.contextmanager
def _gathered(params: Any) -> Iterator[None]:
    """Give a parameter its whole value for a while: the sum over the ranks."""
    import torch.distributed as dist

    (param,) = params
    own, param.data = param.data, param.data.clone()
    dist.all_reduce(param.data)
    yield
    param.data = own


def on_rank(case: Case, rank: int) -> tuple[list[tuple[float, float | None]], int, bool]:
    """Return which weights each generation sampled with, how many were sent in all, and whether any were read again."""
    import torch

    given = case.options
    model: Any = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.zeros(()))})
    model.name_or_path, _Engine.is_npu, _Engine.fails = "", "is_npu" in given, "fails" in given
    trainer = _trainer(case, rank, model)
    known = {"prompts": ["0"], "prompt_ids": [[0]], "num_generations": 1}
    asked = inspect.signature(trainer._generate_single_turn).parameters.values()
    for step in _steps(case, rank):
        model["weight"].data.fill_(step if rank == 0 or "is_sharded" not in given else 0)
        trainer.state.global_step = step
        if "own" in given and step == trainer._last_loaded_step:
            trainer.vllm_generation.sync_weights()
            trainer.llm.sleep(2)
        with contextlib.suppress(_Done, _Failed):
            if given["job"] != "OpenEnv":
                trainer._generate_single_turn(**{it.name: known.get(it.name) for it in asked if it.default is it.empty})
                continue
            if step != trainer._last_loaded_step:  # as before a rollout_func
                trainer.vllm_generation.sync_weights()
                trainer._last_loaded_step = step
            getattr(importlib.import_module(_OPENENV), _ROLLOUT)(trainer, [[0]], as_chat=False)
    return trainer.llm.sampled, trainer.llm.sent, trainer.llm.has_read


def _steps(case: Case, rank: int) -> Sequence[int]:
    """Return the steps that the optimizer has done before each of a rank's generations."""
    steps: Sequence[int] = case.options["steps"]
    return [*dict.fromkeys(steps)] if rank and "is_uneven" in case.options else steps


def _trainer(case: Case, rank: int, model: Any) -> Any:
    """Return a trainer of the case's kind. What is not set is false."""
    import torch.distributed as dist

    given, function = case.options, case.options.get("function", "")
    kind = "RLOO" if given["job"] == "RLOO" else "GRPO"
    known = getattr(importlib.import_module(_TRAINERS[kind]), f"{kind}Trainer")
    (other := MagicMock()).__bool__.return_value = False
    above = type("Base", (), {"_prepare_inputs": lambda _, it: it})
    trainer: Any = object.__new__(type("Job", (known, above), {"__getattr__": lambda *_: other}))
    size = case.topology.world if "is_parallel" in given else 1
    plugin = SimpleNamespace(zero_stage=3) if "is_sharded" in given else None
    accelerator = SimpleNamespace(
        num_processes=case.topology.world, process_index=rank, local_process_index=rank, is_main_process=rank == 0,
        state=SimpleNamespace(deepspeed_plugin=plugin), wait_for_everyone=_nothing, device="cpu",
    )  # fmt: skip
    args = type("Args", (), {"__getattr__": _nothing, "vllm_enable_sleep_mode": given["sleeps"]})()
    vars(trainer).update(
        accelerator=accelerator, model=model, args=args, state=SimpleNamespace(global_step=0),
        use_vllm=True, vllm_mode="colocate", vllm_tensor_parallel_size=size, tp_group=size > 1 and dist.group.WORLD,
        num_generations=1, num_generations_eval=1, rollout_func=None, _last_loaded_step=given.get("loaded", -1),
    )  # fmt: skip
    if not importlib.util.find_spec(_ENGINE):
        trainer.llm = _Engine()
        del trainer.llm.weights["unsent"]  # 0.25 never reads the checkpoint again
        if given["sleeps"]:
            trainer.llm.sleep(2)
        return trainer
    asked = {"model": model, "accelerator": accelerator, "is_fsdp_enabled": False, "processing_class": None}
    asked |= {"mode": "colocate", "tensor_parallel_size": size, "enable_sleep_mode": given["sleeps"]}
    made = importlib.import_module(_ENGINE).VLLMGeneration
    engine = made(**{name: asked[name] for name in inspect.signature(made).parameters if name in asked})
    gather = _gathered if plugin else lambda _: contextlib.nullcontext()
    vars(engine).update(
        dict.fromkeys(("rollout_func", "tools", "chat_template", "chat_template_kwargs")) | vars(engine)
    )
    engine._dist = SimpleNamespace(is_fsdp=False, gather_params=gather)
    trainer.vllm_generation, trainer.llm = engine, engine.llm
    if "is_server" in given:
        engine.mode, engine.processing_class = "server", MagicMock()
        trainer.llm = engine.vllm_client = _Server()
        del engine.llm
    if function:
        _fill_in(case, engine, trainer.llm)
    return trainer


def _fill_in(case: Case, engine: Any, llm: Any) -> None:
    """Give a function that is run by itself what the others are with the fix."""
    function, sync, itself = case.options["function"], engine.sync_weights, engine.generate
    sleeps = engine.enable_sleep_mode and engine.mode == "colocate"

    def woken() -> None:
        llm.wake_up(["weights"])
        with contextlib.suppress(NotImplementedError):
            llm.collective_rpc("reload_weights")
        sync()
        engine._llm_weights_sleeping = False

    def generated(**given: Any) -> None:
        if function == _GENERATE:
            asked = inspect.signature(itself).parameters.values()
            itself(**{it.name: given.get(it.name) for it in asked if it.name in given or it.default is it.empty})
            raise _Done
        if sleeps and (function != _SYNC or getattr(engine, "_llm_weights_sleeping", True)):
            woken()
        llm.wake_up(["kv_cache"])
        llm.generate([0])
        if sleeps and "stays" not in case.options:
            llm.sleep(2)
            engine._llm_weights_sleeping = True
        raise _Done

    engine.generate = generated
    if function in (_GENERATE, _ROLLOUT) and sleeps:
        engine.sync_weights = woken


def wrong(case: Case, ranks: Sequence[tuple[list[tuple[float, float | None]], int, bool]]) -> str:
    """Return which generation sampled with other weights than are due, or what was sent or read in vain."""
    given, function = case.options, case.options.get("function", "")
    is_part = function.endswith(_TURN) or (function == _SYNC and "beyond" not in given) or "is_npu" in given
    for rank, (sampled, sent, has_read) in enumerate(ranks):
        due = _due(case, rank)
        lost = [unsent for _, unsent in sampled if unsent == _LOST and not is_part]
        if [weight for weight, _ in sampled] != due or lost:
            return right(case, ranks)
        if not function.endswith(_TURN) and sent != len(due if given["sleeps"] else {*due}):
            return f"rank {rank} sends the weights {sent} times for {len(due)} generations"
        if has_read and not given["sleeps"]:
            return f"rank {rank} reads the checkpoint, and never slept"
    return ""


def _due(case: Case, rank: int) -> list[int]:
    """Return the weights of each generation. A reload that fails ends them."""
    steps = [*_steps(case, rank)]
    return steps[:1] if "fails" in case.options else steps


def right(case: Case, ranks: Sequence[tuple[list[tuple[float, float | None]], int, bool]]) -> str:
    """Return what was seen, beside what is due."""
    sampled = [*zip(*ranks[0][0])] or [(), ()]
    return f"vLLM samples with {[*sampled[0]]}, due {_due(case, 0)}, and with {[*sampled[1]]} of disk"
