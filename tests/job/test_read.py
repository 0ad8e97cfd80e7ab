"""What a job is started with: scripts, configs, pasted commands and processes, read and not run."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unhang.errors import UnhangError
from unhang.job import read
from unhang.job.settings import Job, Setting, Value

MEGATRON = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:4
GPUS_PER_NODE=${SLURM_GPUS_ON_NODE}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes=$SLURM_NNODES
    --node_rank $SLURM_NODEID
)
TP=2
MODEL_ARGS=(
    --tensor-model-parallel-size $TP
    --expert_model_parallel_size=$((GPUS_PER_NODE / 2))
    --sequence-parallel
    --lr 1e-4
    --no-load-optim  # not the optimizer
    --data-path $1
)
if [ -n "$WANDB_PROJECT" ]; then
    MODEL_ARGS+=(--wandb-project $WANDB_PROJECT)
fi
srun torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" \\
    --bf16 --blend 0.3 a 0.7 b $EXTRA_ARGS
"""


def given(tmp_path: Path, text: str, *settings: str, name: str = "job.sh") -> Job:
    (tmp_path / name).write_text(text)
    return read.job([str(tmp_path / name)], settings)


def values(job: Job) -> dict[str, Value]:
    return {name: setting.value for name, setting in job.settings.items()}


def test_a_script_with_options_of_megatron(tmp_path: Path) -> None:
    job = given(tmp_path, MEGATRON)
    assert values(job) == {
        "tensor_model_parallel_size": 2, "expert_model_parallel_size": 2, "sequence_parallel": True, "lr": 1e-4,
        "no_load_optim": True, "bf16": True, "blend": "0.3 a 0.7 b",
    }  # fmt: skip
    assert job.settings["tensor_model_parallel_size"].source == "job.sh:12"
    assert job.unknown == {
        "data_path": "job.sh:17: $1 is known when the script runs",
        "wandb_project": "job.sh:20: MODEL_ARGS depends on a condition",
    }
    assert job.rest == "job.sh:24: EXTRA_ARGS is not set here"
    assert (job.program, job.ranks) == ("pretrain_gpt.py", Setting(8, "job.sh:3"))


def test_a_setting_that_is_given_wins_over_all(tmp_path: Path) -> None:
    job = given(tmp_path, MEGATRON, "--data-path=x", "lr=null", "ranks=16", "lr=3", "some rank is idle=true", "a.b-c=1")
    assert (job.settings["data_path"], job.settings["lr"]) == (Setting("x", "--setting"), Setting(3, "--setting"))
    assert (values(job)["some rank is idle"], values(job)["a.b-c"], job.ranks) == (True, 1, Setting(16, "--setting"))
    assert "data_path" not in job.unknown


def test_overrides_of_hydra(tmp_path: Path) -> None:
    text = """
export HYDRA_FULL_ERROR=1
actor="actor_rollout_ref.actor.strategy=fsdp2 \\
    actor_rollout_ref.actor.fsdp_config.fsdp_size=${FSDP:--1}"
python3 -u -m verl.trainer.main_ppo --config-name=mine $actor +a.b=1 ++c='[1,2]' ~d.e f=$(nproc) \\
    trainer.logger=['console','wandb'] "data.files=['$HOME/a']" actor@actor_rollout_ref.actor=megatron_actor $@
"""
    job = given(tmp_path, text)
    assert job.settings["actor_rollout_ref.actor.fsdp_config.fsdp_size"] == Setting(-1, "job.sh:3, unless FSDP is set")
    assert job.settings["a.b"] == Setting(1, "job.sh:5", "+a.b")
    assert values(job) == {
        "actor_rollout_ref.actor.strategy": "fsdp2", "actor_rollout_ref.actor.fsdp_config.fsdp_size": -1, "a.b": 1,
        "c": "[1,2]", "d.e": None, "config_name": "mine", "trainer.logger": "[console,wandb]",
        "actor@actor_rollout_ref.actor": "megatron_actor",
    }  # fmt: skip
    assert [*job.unknown] == ["f", "data.files"]
    assert (job.program, job.rest) == ("verl.trainer.main_ppo", "")


@pytest.mark.parametrize("value", ["1,8", "[1],[2]", "'a,b',c", "choice(1, 2)", "range(1,9)"])
def test_a_sweep_of_hydra_has_no_one_value(value: str, tmp_path: Path) -> None:
    job = given(tmp_path, f'python3 -m verl.trainer.main_ppo -m "a.b={value}" "c.d=\'1,2\'"')
    assert job.unknown == {"a.b": f"job.sh:1: {value} is a sweep over several values"}
    assert "c.d" in job.settings


def test_a_name_for_another_variable_makes_both_unknown(tmp_path: Path) -> None:
    job = given(tmp_path, "TP=1\ndeclare -n size=TP\nsize=8\npython -m a.b --tp $TP --pp 2")
    assert (values(job), [*job.unknown]) == ({"pp": 2}, ["tp"])


@pytest.mark.parametrize(
    ("command", "program", "ranks"),
    [
        ("NPROC_PER_NODE=8 megatron sft --a 1", "megatron sft", 8),
        ("export NNODES=2 NPROC_PER_NODE=4\nswift rlhf --a 1", "swift rlhf", 8),
        ("swift sft --a 1", "swift sft", None),
        ("torchrun train.py --a 1", "train.py", 1),
        ("torchrun --standalone --nproc-per-node=4 -m verl.trainer.sft_trainer --a 1", "verl.trainer.sft_trainer", 4),
        ("torchrun --nproc_per_node gpu x.py --a 1", "x.py", None),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 x.py --a 1", "x.py", None),
        ("torchrun --nnodes ${N:-1} --nproc_per_node 8 x.py --a 1", "x.py", 8),
        ("torchrun --nnodes ${N:-1} x.py --a 1", "x.py", None),
        ("python -m torch.distributed.run --nproc_per_node 2 --nnodes 2 x.py --a 1", "x.py", 4),
        ("/opt/bin/python3.12 -u -W ignore x.py --a 1", "x.py", None),
        ("srun -N 2 --ntasks-per-node=4 --mpi=pmix python x.py --a 1", "x.py", 8),
        ("srun bash -c 'torchrun --nproc_per_node 8 x.py --a 1'", "x.py", 8),
        ("mpirun -np 16 -x PATH python x.py --a 1", "x.py", 16),
        ("accelerate launch --num_processes 4 x.py --a 1", "x.py", 4),
        ("nohup docker run --rm img bash -lc \"cd /w && python x.py --a 1\" &", "x.py", None),
        ("uv run --extra megatron python3 x.py --a 1", "x.py", None),
        ("ray job submit --address=x -- python3 -m verl.trainer.main_ppo --a 1", "verl.trainer.main_ppo", None),
        ("L=(python)\nif f; then L=(uv run python); fi\n\"${L[@]}\" -m a.b --a 1", "a.b", None),
        ("$PYTHON -m a.b --a 1", "a.b", None),
        ("root@node-1:/work/Megatron-LM# torchrun x.py --a 1", "x.py", 1),
        ("(env) [me@node dir]$ python x.py --a 1", "x.py", None),
        ("+ python3 -m a.b --a 1", "a.b", None),
    ],
)  # fmt: skip
def test_what_a_command_starts_and_on_how_many_ranks(command: str, program: str, ranks: int | None) -> None:
    job = read.job(["-"], [], io.StringIO(f"pip install x\necho torchrun no.py --b 2\n{command}\n"))
    assert (job.program, job.ranks and job.ranks.value, values(job), job.parts) == (program, ranks, {"a": 1}, ())


def test_several_commands_are_jobs_of_their_own_and_equal_ones_are_one() -> None:
    job = read.job(["-"], [], io.StringIO("python a.py --x 1\npython a.py --x 2 --y 1\npython a.py --x 1"))
    assert [values(part) for part in job.parts] == [{"x": 1}, {"x": 2, "y": 1}]


def test_a_branch_that_a_default_decides_marks_what_it_says() -> None:
    text = 'M=${M:-1}\nA=(--a)\nif [ $M = 1 ]; then A+=(--b --c 2); fi\npython x.py "${A[@]}" --d'
    job = read.job(["-"], [], io.StringIO(text))
    at = "stdin:3, unless M is set"
    assert job.settings == {
        "a": Setting(True, "stdin:2"), "b": Setting(True, at), "c": Setting(2, at), "d": Setting(True, "stdin:4"),
    }  # fmt: skip


def test_configs_are_below_the_commands_that_read_them(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("lr: 1e-5\nmodel:\n  tp: 2\n  list: [1, a]\nb: &x {c: yes}\nd: {<<: *x, e: '1'}\n")
    (tmp_path / "job.sh").write_text("megatron sft c.yaml --lr 3")
    job = read.job([str(tmp_path / "job.sh"), str(tmp_path / "c.yaml")], [])
    expected = {"lr": 3, "model.tp": 2, "model.list": '[1, "a"]', "b.c": True, "d.c": True, "d.e": "1"}
    assert (values(job), job.rest) == (expected, "")
    job = read.job([str(tmp_path / "job.sh")], [])
    assert job.rest == "job.sh:1 reads c.yaml, which --job does not name"
    (tmp_path / "c.json").write_text('{"--train-iters": 2, "a": {"b": null}}')
    assert values(read.job([str(tmp_path / "c.json")], [])) == {"train_iters": 2, "a.b": None}


def test_options_without_a_command_are_read_and_the_rest_is_open() -> None:
    job = read.job(["-"], [], io.StringIO("MODEL_ARGS=(\n --tp 2\n --swiglu\n)\n"))
    assert (values(job), job.rest) == ({"tp": 2, "swiglu": True}, "stdin: no command in it is known to start a job")
    assert values(read.job(["-"], [], io.StringIO("--tp 2 --lr 1"))) == {"tp": 2, "lr": 1}


def test_a_process_is_read_from_proc() -> None:
    code = "import sys, time; sys.stdout.write('up'); sys.stdout.flush(); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(2) == b"up"
        with pytest.raises(UnhangError, match="none that starts a job"):
            read.job([f"pid:{process.pid}"], [])
        process.kill()


def test_a_rank_knows_its_options_and_the_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, str(tmp_path / "train.py"), "--tp", "2", "--name", "a b"]
    environ = {**os.environ, "WORLD_SIZE": "16"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout
        process.stdout.readline()
        file = f"pid:{process.pid}"
        job = read.job([file], [])
        process.kill()
    assert (values(job), job.ranks) == ({"tp": 2, "name": "a b"}, Setting(16, f"WORLD_SIZE of {file}"))


def refused(tmp_path: Path, name: str, data: bytes | None = None) -> UnhangError:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnhangError) as caught:
        read.job([str(tmp_path / name)], [])
    assert "--setting" in str(caught.value.hint)
    return caught.value


def test_what_cannot_be_read_is_refused_with_what_to_give(tmp_path: Path) -> None:
    assert refused(tmp_path, "gone.sh").code == "unreadable"
    assert refused(tmp_path, "a.sh", b"torchrun 'x").message.endswith("a ' is not closed")
    with pytest.raises(UnhangError, match="is no text"):
        read.job(["-"], [], io.StringIO("python x.py --a \0u61\0"))
    assert refused(tmp_path, "a.py", b"pass").message.endswith("what .py files say is not read")
    assert refused(tmp_path, "b.sh", b"\xff\xfe").code == "bad-job"
    assert refused(tmp_path, "b.sh", b"a\0b").code == "bad-job"
    assert refused(tmp_path, "a.yaml", b"!!python/object/apply:os.system [true]").message.endswith("it has no keys")
    assert refused(tmp_path, "b.yaml", b"a: [").code == "bad-job"
    assert refused(tmp_path, "c.yaml", b"a: " + b"[" * 5000).code == "bad-job"
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert refused(tmp_path, "d.yaml", laughs.encode()).message.endswith(
        "it has too much in it, or is nested too deeply"
    )
    assert refused(tmp_path, "a.json", b'{"a": ' * 100_000).code == "bad-job"
    assert refused(tmp_path, "c.sh", b"#" * (read.LARGEST + 1)).message.endswith("it has more than 4 MiB")
    assert refused(tmp_path, "d.sh", b"python a.py --x 1\n" * 100).message.endswith("it starts over 50 programs")
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path, "pipe").message.endswith("it is no regular file")
    assert refused(tmp_path, ".").code == "unreadable"
    for file in "pid:x", "pid:4194305":
        with pytest.raises(UnhangError, match=r"no number|cannot be read"):
            read.job([file], [])
    for setting in "a", "=1":
        with pytest.raises(UnhangError, match="gives no name a value"):
            read.job([], [setting])


def test_a_tag_makes_nothing_and_no_time_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: !!python/object/apply:os.system ['touch /tmp/x']\nb: 1\n")
    start = time.monotonic()
    assert values(read.job([str(tmp_path / "a.yaml")], [])) == {"a": '["touch /tmp/x"]', "b": 1}
    given(tmp_path, "x " + "a=$(b) " * 15_000 + "\n" + "if a; then b=1; fi\n" * 3000 + "# " + "q" * 100_000)
    assert time.monotonic() - start < 10


def test_a_damaged_script_is_read_or_refused() -> None:
    chance, pieces = (
        random.Random(1),
        [*"'\"$(){}[]`\\\n;&|<>=#*@!-+", "${A[@]}", "$((", "<<E\n", "if ", "fi\n", "\ud800"],
    )
    outcomes = set()
    for _ in range(400):
        text = MEGATRON
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(pieces) + text[at + chance.randrange(20) :]
        try:
            outcomes.add(read.job(["-"], [], io.StringIO(text)).program)
        except UnhangError as error:
            outcomes.add(error.code)
    assert {"pretrain_gpt.py", "bad-job"} <= outcomes


def test_yaml_needs_an_extra_and_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("a: 1")
    with pytest.raises(UnhangError) as caught:
        read.job([str(tmp_path / "a.yaml")], [])
    assert (caught.value.code, caught.value.hint) == ("no-job-reader", "pip install 'unhang[job]'")
