"""Forward passes of `P` models over a batch, by one of three paths (`loop`, `vmap`, `stacked`), chunked by memory.

The fastest path depends on model and device (on a CPU loops and a model's own population form, on a GPU few large
launches), so the path comes from a static table, from a timed trial (`path=auto`) or from the config. The path is
resolved once and recorded, because the last bits of a result depend on it. All paths agree within 1e-5.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fne.core.dataset import Samples
from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.core.randomness import seeded_initialisation
from fne.evolution import losses as fitness
from fne.evolution.genome import Layout, buffers_of, fill_buffers
from fne.evolution.rank_one import RankOne

Path = Literal["loop", "vmap", "stacked"]
PATHS: tuple[Path, ...] = ("loop", "vmap", "stacked")

CPU_WORKING_SET = 256 * 2**20
"""Bytes of activations per pass on a CPU: larger passes gain nothing there (benchmarks/evaluate.py)."""
LARGEST_TILE = 512
_BATCH_NORM = nn.modules.batchnorm._BatchNorm
FULL_CHUNK = 16
"""Individuals per pass beyond which a CPU gains nothing; the tile shrinks to make room for this many."""


@dataclass(frozen=True)
class Plan:
    """How a population is evaluated: by `path`, with `chunk` individuals and `tile` samples per pass.

    `most` samples of one individual fit into the memory limit. `together` models are trained side by side; 0 means one
    on a CPU and as many as fit elsewhere.
    """

    path: Path
    chunk: int
    tile: int
    most: int = 2**62
    together: int = 0


class Evaluator:
    """Evaluates populations of one module on one device; the evaluator owns the module and keeps it in eval mode.

    A population is a tensor `[P, D]` or pairs around a centre. Pairs go through a model's `forward_rank_one` where the
    path is `stacked`; otherwise their individuals are materialised chunk by chunk.
    """

    def __init__(self, module: nn.Module, plan: Plan, *, output: str) -> None:
        self.module = module.eval()
        self.layout = Layout(module)
        self.plan = plan
        self.output = output
        self.device = next(module.parameters()).device
        parameters = dict(module.named_parameters())
        self._initial = buffers_of(module)
        self._slots = [(parameters[leaf.name], leaf) for leaf in self.layout.leaves]
        self._takes_pairs = hasattr(module, "forward_rank_one")
        if plan.path == "stacked" and not hasattr(module, "forward_population"):
            raise SettingError(
                "evaluation.path", "stacked", f"loop or vmap: {type(module).__name__} has no forward_population"
            )

    @torch.inference_mode()
    def sample_losses(
        self,
        population: Tensor | RankOne,
        samples: Samples,
        loss: str,
        *,
        buffers: Tensors | None = None,
        batch_statistics: bool = False,
        per_output: bool = False,
    ) -> Tensor:
        """Return the loss of each individual on each sample, `[P, N]` float32 on the device; per output `[P, N, C]`.

        Args:
            population: `P` individuals.
            samples: `N` samples, on this device.
            loss: a name of `fitness.Loss`.
            buffers: the same for all individuals; missing buffers have their values from the evaluator's creation.
            per_output: see `fitness.sample_losses`.
            batch_statistics: batch normalisation takes each individual's statistics over all `N` samples instead.

        Raises:
            SettingError: `batch_statistics` needs all samples in one pass, and they are too many or too few.
        """
        self._set_buffers(buffers)
        plan = self.plan
        if batch_statistics:
            if len(samples) > plan.most:
                allowed = (
                    f"identity or server with {len(samples)} samples on a node: evaluation.memory holds {plan.most}"
                )
                raise SettingError("evaluation.batch_norm", "batch", allowed)
            fitting = max(1, plan.chunk * plan.tile // len(samples))
            plan = replace(plan, chunk=min(plan.chunk, fitting), tile=len(samples))
            if isinstance(population, RankOne):  # individuals with their own statistics share nothing
                population = population.to(self.device).materialised(self.layout)
        result: Tensor | None = None
        with _batch_statistics(self.module, len(samples)) if batch_statistics else contextlib.nullcontext():
            for rows, columns, logits in self._passes(population, samples.x, plan):
                y = samples.y[columns]
                losses = fitness.sample_losses(loss, logits, y, self.output, per_output=per_output)
                if result is None:
                    result = losses.new_empty(len(population), len(samples), *losses.shape[2:])
                result[rows, columns] = losses
        assert result is not None
        return result

    @torch.inference_mode()
    def evaluate(
        self, population: Tensor | RankOne, samples: Samples, *, loss: str, buffers: Tensors | None = None
    ) -> dict[str, Tensor]:
        """Return mean `loss` and `accuracy` (NaN without labels) of each individual, float64 `[P]` on the CPU."""
        self._set_buffers(buffers)
        labels = samples.y.dtype == torch.int64
        total = torch.zeros(len(population), dtype=torch.float64, device=self.device)
        right = torch.zeros_like(total)
        for rows, columns, logits in self._passes(population, samples.x):
            y = samples.y[columns]
            total[rows] += fitness.sample_losses(loss, logits, y, self.output).double().sum(dim=1)
            if labels:
                right[rows] += fitness.correct(logits, y)
        accuracy = right / len(samples) if labels else torch.full_like(total, torch.nan)
        return {"loss": (total / len(samples)).cpu(), "accuracy": accuracy.cpu()}

    @torch.inference_mode()
    def statistics(self, genes: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Return the buffers of an individual `[D]` after batch normalisation has seen inputs `[N, *shape]`.

        Means and variances come from passes of at most `LARGEST_TILE` samples, weighted by their size, and do not
        depend on the plan.

        Raises:
            SettingError: a channel has a single value, which has no variance.
        """
        self._set_buffers(None)
        self.layout.fill(self.module, genes)
        norms = [m for m in self.module.modules() if isinstance(m, _BATCH_NORM)]
        momenta = [norm.momentum for norm in norms]
        seen = 0
        try:
            self.module.train()
            for dropout in (m for m in self.module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)):
                dropout.eval()
            for part in torch.tensor_split(x, -(-len(x) // LARGEST_TILE)):  # even: a single sample has no variance
                seen += len(part)
                for norm in norms:
                    norm.momentum = len(part) / seen
                with _enough("server", len(part)), seeded_initialisation("statistics", device=self.device):
                    self.module(part)  # layers that draw numbers draw the same ones each time
            found = buffers_of(self.module)
        finally:
            self.module.eval()
            self._set_buffers(None)
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        return {name: self._initial[name] if b.dtype == torch.int64 else b for name, b in found.items()}

    def logits(self, population: Tensor | RankOne, x: Tensor, *, buffers: Tensors | None = None) -> Tensor:
        """Return the logits `[P, N, C]` of a population on inputs `[N, *shape]`, with all chunks joined."""
        self._set_buffers(buffers)
        with torch.inference_mode():
            rows: dict[int, list[Tensor]] = {}
            for chunk, _, values in self._passes(population, x):
                rows.setdefault(chunk.start, []).append(values)
            return torch.cat([torch.cat(rows[start], dim=1) for start in sorted(rows)])

    def _set_buffers(self, buffers: Tensors | None) -> None:
        if self._initial:  # a task that trained may have left other buffers
            fill_buffers(self.module, {**self._initial, **(buffers or {})})

    def _passes(
        self, population: Tensor | RankOne, x: Tensor, plan: Plan | None = None
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield slices of individuals and of samples with their logits, chunk after chunk, tile after tile."""
        plan = plan or self.plan
        population = population.to(self.device)
        if isinstance(population, RankOne) and plan.path == "stacked" and plan.chunk > 1 and self._takes_pairs:
            yield from self._paired_passes(population, x, plan)
            return
        forward = {"loop": self._loop, "vmap": self._vmap, "stacked": self._stacked}[plan.path]
        for rows in _slices(len(population), plan.chunk):
            some = population[rows] if isinstance(population, Tensor) else population.materialised(self.layout, rows)
            for columns in _slices(len(x), plan.tile):
                yield rows, columns, forward(some, x[columns])

    def _paired_passes(self, population: RankOne, x: Tensor, plan: Plan) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the items of `_passes` for pairs; one pass computes both halves of a chunk."""
        count = len(population.factors)
        for rows in _slices(count, plan.chunk // 2):
            parameters, factors = population.pairs(self.layout, rows)
            others = slice(rows.start + count, rows.stop + count)
            for columns in _slices(len(x), plan.tile):
                logits = self.module.forward_rank_one(parameters, factors, x[columns])  # type: ignore[operator]
                for half, values in zip((rows, others), logits.chunk(2), strict=True):
                    yield half, columns, values

    def _loop(self, population: Tensor, x: Tensor) -> Tensor:
        if x.ndim == 4 and not x.is_cuda:  # CPU convolutions run 1.3 to 2 times faster with channels last
            x = x.contiguous(memory_format=torch.channels_last)
        outputs = []
        for genes in population:
            for parameter, leaf in self._slots:
                parameter.copy_(genes[leaf.start : leaf.stop].view(leaf.shape))
            outputs.append(self.module(x))
        return torch.stack(outputs)

    def _vmap(self, population: Tensor, x: Tensor) -> Tensor:
        def forward(parameters: dict[str, Tensor]) -> Any:
            return functional_call(self.module, parameters, (x,))

        result: Tensor = vmap(forward)(self.layout.unflatten(population))
        return result

    def _stacked(self, population: Tensor, x: Tensor) -> Tensor:
        result: Tensor = self.module.forward_population(self.layout.unflatten(population), x)  # type: ignore[operator]
        return result


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@contextlib.contextmanager
def _enough(policy: str, samples: int) -> Iterator[None]:
    """Translate torch's error about a batch with a single value per channel into a `SettingError`."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        allowed = f"identity: {samples} sample gives a channel one value, which has no variance; or more samples"
        raise SettingError("evaluation.batch_norm", policy, allowed) from None


@contextlib.contextmanager
def _batch_statistics(module: nn.Module, samples: int) -> Iterator[None]:
    """Make batch normalisation in eval mode use the batch's statistics, as torch does without running statistics."""
    norms = [m for m in module.modules() if isinstance(m, _BATCH_NORM)]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    for norm in norms:
        norm.running_mean = norm.running_var = None
    try:
        with _enough("batch", samples):
            yield
    finally:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean, norm.running_var = mean, variance


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a module has a batch normalisation layer."""
    return any(isinstance(m, _BATCH_NORM) for m in module.modules())


# ------------------------------------------------------------------------------------------------ planning
def resolve_plan(
    module: nn.Module,
    example: Tensor,
    settings: Mapping[str, Any],
    *,
    output: str,
) -> Plan:
    """Return the plan for a module on its device.

    Args:
        module: on the device of the evaluation; set to eval mode, so that trial passes do not change its statistics.
        example: inputs `[N, *shape]` like a node's, on the same device; `path=auto` times them.
        settings: `path` (`table`, `auto`, a path), `chunk`, `tile` (numbers or `None`), `memory` (bytes), `together`.
        output: as in `Evaluator`.

    Raises:
        SettingError: one individual on one sample does not fit into `memory`.
    """
    module.eval()
    has_stacked = hasattr(module, "forward_population")
    path = settings["path"]
    if path == "table":  # the model's own form was written because it is the fastest on a CPU
        path = "stacked" if has_stacked else ("loop" if example.device.type == "cpu" else "vmap")
    candidates = [p for p in PATHS if p != "stacked" or has_stacked] if path == "auto" else [path]
    plans = [_plan(module, p, example, settings) for p in candidates]
    return plans[0] if len(plans) == 1 else min(plans, key=lambda plan: _seconds(module, plan, example, output))


def _plan(module: nn.Module, path: Path, example: Tensor, settings: Mapping[str, Any]) -> Plan:
    budget = int(settings["memory"])
    own = getattr(module, "population_bytes", None) if path == "stacked" else None
    per_sample = own or activation_bytes(module, example[:1])
    if per_sample > budget:
        raise SettingError(
            "evaluation.memory", budget, f"at least {per_sample} bytes, the need of one model for one sample"
        )
    most = budget // per_sample
    if example.device.type == "cpu":
        budget = max(min(budget, CPU_WORKING_SET), per_sample)
    tile = settings["tile"]
    if tile is None:
        tile = LARGEST_TILE
        while tile > 1 and FULL_CHUNK * tile * per_sample > budget:
            tile //= 2
    return Plan(
        path, settings["chunk"] or max(1, budget // (tile * per_sample)), tile, most, settings.get("together", 0)
    )


def activation_bytes(module: nn.Module, x: Tensor) -> int:
    """Return an upper estimate of one individual's activations for one sample `x [1, *shape]`, in bytes.

    The estimate is the sum of all layers' outputs, doubled for the working memory of a layer.
    """
    total = 0

    def count(_: nn.Module, __: Any, result: Any) -> None:
        nonlocal total
        if isinstance(result, Tensor):
            total += result.numel() * result.element_size()

    leaves = [m for m in module.modules() if not any(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    try:
        with torch.inference_mode():
            out = module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * max(total, int(out.numel()) * int(out.element_size()))


def _seconds(module: nn.Module, plan: Plan, x: Tensor, output: str) -> float:
    evaluator = Evaluator(module, plan, output=output)
    population = evaluator.layout.flatten(module).repeat(min(plan.chunk, 16), 1).to(x.device)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        evaluator.logits(population, x)
        if x.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
