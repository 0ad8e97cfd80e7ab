"""What a job has set, by the names of conditions, in real releases: its own values, and the defaults."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli
from unhang.job import lookup, read
from unhang.job.lookup import View
from unhang.job.settings import Job, Setting
from unhang.records import Installation

RELEASES = {
    "verl": ("verl", "0.8.0"), "ms-swift": ("ms-swift", "4.6.0"), "megatron-core": ("megatron-core", "0.17.1"),
    "megatron-lm": ("megatron-core", "0.17.1"), "megatron-bridge": ("megatron-bridge", "0.6.2"),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[Installation]:
    found = []
    for upstream, (project, version) in RELEASES.items():
        root = str(cli.unpack(tmp_path_factory.mktemp(upstream), (project, version)))
        found.append(Installation(upstream, version, root, root, root, "wheel", None, ()))
    return found


@pytest.fixture
def looks(installed: list[Installation]) -> Callable[..., tuple[View, ...]]:
    return lambda text, upstream, *settings: lookup.looks(job(text, *settings), installed, upstream)


def job(text: str, *settings: str) -> Job:
    return read.job(["-"], settings, io.StringIO(text))


PPO = "python -m verl.trainer.main_ppo "


def test_a_key_of_verl_is_the_jobs_own_or_the_default_of_the_release(looks: Callable[..., tuple[View, ...]]) -> None:
    (actor,) = looks(f"{PPO} algorithm.adv_estimator=grpo actor_rollout_ref.actor.fsdp_config.fsdp_size=4", "verl")
    assert actor("fsdp_size") == Setting(4, "stdin:1", "actor_rollout_ref.actor.fsdp_config.fsdp_size")
    assert actor("strategy") == Setting("fsdp", "default of verl 0.8.0", "actor_rollout_ref.actor.strategy")
    assert actor("lora.merge") == Setting(False, "default of verl 0.8.0", "actor_rollout_ref.model.lora.merge")
    assert actor("use_legacy_worker_impl") == Setting(None, "verl 0.8.0 has no such setting")
    assert lookup.told(actor, "fsdp_size") == "actor_rollout_ref.actor.fsdp_config.fsdp_size=4 (stdin:1)"
    assert lookup.told(actor, "version verl") == "verl 0.8.0 (installed)"
    assert (actor("program"), actor("ranks")) == (
        Setting("verl.trainer.main_ppo", "its command"),
        Setting(8, "default of verl 0.8.0", "trainer.nnodes * trainer.n_gpus_per_node"),
    )


def test_each_role_has_its_own_and_what_refers_to_another_has_that(looks: Callable[..., tuple[View, ...]]) -> None:
    text = f"{PPO} actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.strategy=fsdp2 critic.strategy=fsdp"
    text += " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False"
    actor, ref, critic = looks(text, "verl")
    assert [str(it("strategy")) for it in (actor, ref, critic)] == [
        str(Setting("fsdp2", "stdin:1", "actor_rollout_ref.actor.strategy")),
        str(Setting("fsdp2", "stdin:1", "actor_rollout_ref.ref.strategy")),
        str(Setting("fsdp", "stdin:1", "critic.strategy")),
    ]
    assert [it("use_dynamic_bsz").value for it in (actor, ref, critic)] == [True, False, True]  # type: ignore[union-attr]
    assert len(looks(f"{PPO} algorithm.adv_estimator=grpo", "verl")) == 1  # neither critic nor reference
    assert len(looks(f"{PPO} algorithm.adv_estimator=$A", "verl")) == 2  # a critic, perhaps


def test_a_job_of_verl_has_megatrons_settings_by_keys_of_verl(looks: Callable[..., tuple[View, ...]]) -> None:
    text = (
        f"{PPO} model_engine=megatron algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
        "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
    )
    actor, ref = looks(text, "megatron-core")
    for view in actor, ref:
        assert view("tensor_model_parallel_size").value == view("expert_tensor_parallel_size").value == 4  # type: ignore[union-attr]
        assert view("sequence_parallel").value is True  # type: ignore[union-attr]
        assert view("moe_permute_fusion").value is True  # type: ignore[union-attr]
        assert view("moe_token_dispatcher_type") == Setting("alltoall", "verl sets it so")
        assert view("num_experts") is None  # the model says it
    assert lookup.told(actor, "moe_permute_fusion").startswith("+actor_rollout_ref.actor.megatron.override_transformer")
    assert lookup.told(actor, "num_experts") == "num_experts (its default is not known)"


def test_what_a_job_does_not_run_has_no_looks(looks: Callable[..., tuple[View, ...]]) -> None:
    assert looks(PPO, "megatron-core") == looks(PPO, "ms-swift") == looks(PPO, "mcore-bridge") == ()
    assert looks("megatron sft --lr 1", "verl") == looks("swift sft --lr 1", "megatron-core") == ()
    assert len(looks("megatron sft --lr 1", "mcore-bridge")) == 1
    # a program that nobody knows may run anything
    assert len(looks("torchrun mine.py --micro-batch-size 1", "ms-swift")) == 1
    assert len(looks(PPO, "of-a-pack")) == 2


def test_options_of_megatron_have_the_defaults_of_its_parser(looks: Callable[..., tuple[View, ...]]) -> None:
    text = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --disable-bias-linear --no-masked-softmax-fusion"
    (view,) = looks(f"{text} --num-experts $N", "megatron-core")
    values = {
        name: view(name) and view(name).value  # type: ignore[union-attr]
        for name in (
            "tensor_model_parallel_size", "expert_tensor_parallel_size", "pipeline_model_parallel_size",
            "add_bias_linear", "masked_softmax_fusion", "moe_permute_fusion", "calculate_per_token_loss", "num_experts",
            "mtp_num_layers", "moe_token_dispatcher_type", "vanilla_mbridge", "use_custom_fsdp", "micro_batch_size",
        )
    }  # fmt: skip
    assert values == {
        "tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2, "pipeline_model_parallel_size": 1,
        "add_bias_linear": False, "masked_softmax_fusion": False, "moe_permute_fusion": False,
        "calculate_per_token_loss": False, "num_experts": None, "mtp_num_layers": None,
        "moe_token_dispatcher_type": "allgather", "vanilla_mbridge": None, "use_custom_fsdp": None,
        "micro_batch_size": None,
    }  # fmt: skip
    assert view("num_experts") is None
    assert view.why("num_experts") == "stdin:1: N is not set here"
    assert lookup.told(view, "add_bias_linear") == "--disable-bias-linear=False (stdin:1)"
    assert lookup.told(view, "vanilla_mbridge") == "vanilla_mbridge=None (megatron-lm 0.17.1 has no such setting)"


def test_options_of_ms_swift_have_the_defaults_of_its_classes(looks: Callable[..., tuple[View, ...]]) -> None:
    (view,) = looks("NPROC_PER_NODE=2 megatron rlhf --rlhf_type grpo --tensor_model_parallel_size 2", "megatron-core")
    assert [view(name).value for name in ("rlhf_type", "tensor_model_parallel_size", "ranks")] == ["grpo", 2, 2]  # type: ignore[union-attr]
    assert view("moe_grouped_gemm") == Setting(True, "default of ms-swift 4.6.0")
    assert view("expert_tensor_parallel_size") == Setting(1, "default of ms-swift 4.6.0")
    (view,) = looks("megatron sft", "megatron-core")
    assert (view("calculate_per_token_loss"), view("moe_router_load_balancing_type")) == (None, None)
    (view,) = looks("swift infer --metric acc", "ms-swift")
    assert view("metric") == Setting("acc", "stdin:1")


def test_a_recipe_of_megatron_bridge_leaves_the_rest_open(looks: Callable[..., tuple[View, ...]]) -> None:
    (view,) = looks("torchrun scripts/run_recipe.py --recipe x model.tensor_model_parallel_size=2", "megatron-core")
    assert view("tensor_model_parallel_size") == Setting(2, "stdin:1", "model.tensor_model_parallel_size")
    assert view("sequence_parallel") is None


def test_what_may_be_set_elsewhere_has_no_default(looks: Callable[..., tuple[View, ...]]) -> None:
    (view,) = looks("torchrun pretrain_gpt.py --num-layers 2 $MORE_ARGS", "megatron-core")
    assert (view("num_layers"), view("context_parallel_size")) == (Setting(2, "stdin:1"), None)
    (actor, *_) = looks(f"{PPO} --config-path /etc --config-name mine", "verl")
    assert (actor("strategy"), actor("ranks")) == (None, None)
    (actor, _) = looks(f"{PPO} actor_rollout_ref.actor.fsdp_config='{{a: 1}}'", "verl")
    assert actor("fsdp_size") is None
    assert "is set as a whole" in actor.why("fsdp_size")


def test_a_setting_may_be_given_by_the_name_of_a_condition(looks: Callable[..., tuple[View, ...]]) -> None:
    (actor, *_) = looks(PPO, "verl", "fsdp_size=1", "some rank has nothing to log=true")
    assert actor("fsdp_size") == Setting(1, "--setting")
    assert actor("some rank has nothing to log") == Setting(True, "--setting")
    assert actor("some rank is slow") is None


def test_what_the_release_does_not_know_is_told_with_the_closest_name(installed: list[Installation]) -> None:
    text = "torchrun pretrain_gpt.py --num-layrs 2 --no-load-optim --num-layers 1"
    assert lookup.notes(job(text), installed) == (
        "stdin:1: megatron-lm 0.17.1 has no setting num_layrs; did you mean num_layers?",
    )
    text = f"{PPO} critic.fsdp.fsdp_sise=1 +critic.fsdp.mine=1 my.own=2 model_engine=dp"
    assert lookup.notes(job(text), installed) == (
        "stdin:1: verl 0.8.0 has no setting critic.fsdp.fsdp_sise; did you mean critic.fsdp.fsdp_size?",
    )
    (note,) = lookup.notes(job(f"{PPO} --config-name=mine"), installed)
    assert note == "the defaults of verl are not known: the config mine is not read: there is no config mine"


def test_without_pyyaml_the_defaults_of_verl_are_unknown_and_the_extra_is_named(
    installed: list[Installation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    (note,) = lookup.notes(job(PPO), installed)
    assert note.endswith("YAML is read with PyYAML: pip install 'unhang[job]'")


def test_source_trees_and_pins_are_fine(tmp_path: Path) -> None:
    pinned = Installation("verl", "0.8.0", "", "", "", "wheel", None, ())
    (actor, *_) = lookup.looks(job(PPO), [pinned], "verl")
    assert actor("strategy") is None
    assert lookup.looks(job(PPO), [], "verl")[0]("strategy") is None
