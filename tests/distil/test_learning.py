"""Students that learn: the loss, runs that are killed, what students write themselves, encoders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.compress.pruning.prune import PruneOrder, pruned
from headrace.distil.paired_test import StudentWorse
from headrace.distil.samples import Prompt
from headrace.errors import UsageError
from headrace.loading.export import Export
from headrace.loading.options import EngineOptions
from headrace.weights.checkpoint import open_checkpoint
from tiny import tiny_model

torch = pytest.importorskip("torch", reason="needs headrace[train]")
pytest.importorskip("transformers", reason="needs headrace[train]")

from headrace.distil.learning import losses  # noqa: E402
from headrace.distil.learning.run import DistilOrder, distil  # noqa: E402

TEXT = "".join(chr(33 + (i * i + i // 7) % 90) for i in range(3000))


def quiet(*args: object) -> None:
    del args


def order_of(tmp_path: Path, work: str, **more: Any) -> DistilOrder:
    """A model of three layers, and the same with two."""
    teacher, student = tmp_path / "llama3", tmp_path / "student"
    if not student.exists():
        tiny_model(tmp_path, "llama3")
        windows = np.random.default_rng(1).integers(2, 60, (2, 30)).astype(np.int32)
        with (
            open_checkpoint(teacher) as source,
            pruned(source, PruneOrder(windows=windows, drop_layers="1"), tmp_path, quiet) as (reader, _),
        ):
            Export(checkpoint=reader, path=teacher, name="s", type="f32", threads=1).to_folder(student, quiet)
    order = DistilOrder(
        teacher=str(teacher),
        student=student,
        options=EngineOptions(threads=1, cache_dir=None, quantization="keep"),
        work=tmp_path / work,
        threads=1,
        data=TEXT,
        steps=30,
        window=32,
        batch_tokens=128,
        top_k=16,
    )
    return replace(order, **more)


def test_the_rest_counts_as_one_token() -> None:
    """With all tokens but one the divergence is the whole one; with fewer it is smaller."""
    torch.manual_seed(1)
    said, wanted = torch.randn(5, 40), torch.randn(5, 40) * 3
    logs = torch.log_softmax(wanted, -1)
    whole = losses.divergence(said, wanted)
    last = whole.new_zeros(5)
    for k in (1, 4, 16, 39):
        best, ids = logs.topk(k)
        tail = torch.log1p(-best.exp().sum(-1).clamp(max=1 - 1e-6))
        found = losses.top_divergence(said, ids, best, tail)
        assert (found >= last - 1e-5).all() and (found <= whole + 1e-4).all()
        last = found
    torch.testing.assert_close(last, whole, atol=1e-4, rtol=1e-4)


def test_a_student_learns_also_from_what_it_writes(tmp_path: Path) -> None:
    order = order_of(tmp_path, "work", on_policy=0.5)
    report = distil(order, tmp_path / "out", quiet, quiet)
    assert report.held_out_after < report.held_out_before and report.p_better < 0.05
    assert report.own_samples > 0 and report.steps == 30
    assert (tmp_path / "out" / "distil_loss.png").read_bytes().startswith(b"\x89PNG")
    with open_checkpoint(tmp_path / "out") as written:
        assert written.config["num_hidden_layers"] == 2


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_learning as t
order = t.order_of(Path(sys.argv[1]), "killed")
def step(done, total, loss):
    print(done, flush=True)
t.distil(order, Path(sys.argv[1]) / "never", t.quiet, step)
"""


def test_a_run_that_is_killed_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    order = order_of(tmp_path, "whole")
    distil(order, tmp_path / "whole_out", quiet, quiet)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 12:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "never").exists()
    steps: list[int] = []
    again = order_of(tmp_path, "killed")
    report = distil(again, tmp_path / "again", quiet, lambda done, total, loss: steps.append(done))
    assert report.steps == 30
    whole, other = (tmp_path / name / "model.safetensors" for name in ("whole_out", "again"))
    assert whole.read_bytes() == other.read_bytes()


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Not from its beginning; and only with the same options."""
    order = order_of(tmp_path, "whole")
    distil(order, tmp_path / "whole_out", quiet, quiet)

    class StoppedError(Exception):
        pass

    from headrace.distil.learning.training import Trainer

    real = Trainer.train

    def stops(self: Any, batch_of: Any, progress: Any) -> None:
        def batch(step: int) -> Any:
            if step == 17:
                self.save()
                raise StoppedError
            return batch_of(step)

        real(self, batch, progress)

    stopped = order_of(tmp_path, "stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train", stops)
        with pytest.raises(StoppedError):
            distil(stopped, tmp_path / "no", quiet, quiet)
    with pytest.raises(UsageError, match="holds another run"):
        distil(replace(stopped, seed=2), tmp_path / "no", quiet, quiet)
    steps: list[int] = []
    distil(stopped, tmp_path / "again", quiet, lambda done, total, loss: steps.append(done))
    assert steps == list(range(18, 31))
    whole, other = (tmp_path / name / "model.safetensors" for name in ("whole_out", "again"))
    assert whole.read_bytes() == other.read_bytes()


def test_a_student_that_gets_worse_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(StudentWorse):
        distil(order_of(tmp_path, "work", rate=5.0, table_rate=5.0, steps=8), tmp_path / "out", quiet, quiet)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data": None}, "give either --data, a text, or --prompts"),
        ({"prompts": (Prompt(({"role": "user", "content": "a"},)),)}, "give either --data"),
        ({"on_policy": 1.5}, "give a share from 0 to 1"),
        ({"data": "too short"}, "at least 16 are needed"),
        ({"data": "a" * 3000}, "different samples"),
    ],
)
def test_what_cannot_be_learned(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        distil(order_of(tmp_path, "work", **more), tmp_path / "out", quiet, quiet)
    assert not (tmp_path / "out").exists()


def test_prompts_are_answered_by_the_teacher(tmp_path: Path) -> None:
    prompts = tuple(Prompt(({"role": "user", "content": f"{n} and {n * n}"},)) for n in range(40))
    order = order_of(tmp_path, "work", data=None, prompts=prompts, max_tokens=8, steps=6)
    report = distil(order, tmp_path / "out", quiet, quiet)
    assert report.samples + report.held_out == 40 and report.kind.startswith("probabilities")
