"""Thread-local random operators: they draw from the thread's own generator instead of torch's process-wide one.

torch's modules initialise their parameters, and drop out, under the generator that all threads of a process share, and
most of them accept no other generator. Inside `drawing_from` each random operator on the CPU gets the thread's own
generator as its argument, wherever it is called: in Python, in a composite operator such as an LSTM, or under `vmap`.
Its numbers are those that the process-wide generator would give from the same state.

The means is a dispatch key that torch reserves for such modes and no backend uses. Kernels are registered under it for
the random operators alone and all others fall through, so that only random operators cost more, some microseconds each.
A `TorchDispatchMode` would do the same and intercept every operator, which makes training 10 to 60 per cent slower. A
torch without the key, which is not part of torch's public interface, draws the same numbers from its process-wide
generator, whose state is restored afterwards; threads then wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fne.core.errors import RunError

RANDOM = (
    "_sample_dirichlet", "_standard_gamma", "bernoulli", "bernoulli_", "binomial", "cauchy", "cauchy_", "exponential",
    "exponential_", "geometric", "geometric_", "log_normal", "log_normal_", "multinomial", "normal", "normal_",
    "normal_functional", "poisson", "rand_like", "randint", "randint_like", "randn_like", "randperm", "rand", "randn",
    "random", "random_", "rrelu", "rrelu_", "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional",
    "uniform", "uniform_",
)  # fmt: skip
"""Operators of torch with an argument `generator`; on the CPU all other random operators are composed of these."""

_NAME = "TESTING_ONLY_GenericMode"
_local = threading.local()
_Library: Any = torch.library.Library  # it has no type hints
_libraries: list[Any] = []
"""Registrations of kernels, which last as long as these objects live."""
_WAITING = threading.RLock()


@contextlib.contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Let random operators of this thread on the CPU draw from `generator` inside the block; blocks may nest.

    An operator that is given a generator keeps it. Operators on other devices draw as they do without the block.

    Raises:
        RunError: from within the block, where an operator draws in a backward pass, as activation checkpointing does
            when it repeats a forward pass: numbers drawn before cannot be drawn again.
    """
    if _KEY is None:
        with _process_wide(generator):
            yield
        return
    before = getattr(_local, "generator", None)
    _local.generator = generator
    try:
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _local.generator = before


@contextlib.contextmanager
def _process_wide(generator: torch.Generator) -> Iterator[None]:
    """Lend a generator's state to torch's process-wide one, for one thread at a time, and restore both afterwards."""
    with _WAITING, torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())


def _kernel(operator: Any) -> Callable[..., Any]:
    """Return a kernel that calls `operator` with the thread's own generator, unless a generator was given."""
    arguments = operator._schema.arguments
    tensor = next(n for n, argument in enumerate(arguments) if isinstance(argument.type, torch.TensorType))
    place = next(n for n, argument in enumerate(arguments) if argument.name == "generator")
    written = arguments[tensor].name
    call, outside, backward = operator._op, torch._C._ExcludeDispatchKeyGuard, torch._C._current_graph_task_id
    only = torch._C.DispatchKeySet(_KEY)

    def draw(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("generator") is not None or (len(args) > place and args[place] is not None)
        with outside(only):
            if given or not (args[tensor] if len(args) > tensor else kwargs[written]).is_cpu:
                return call(*args, **kwargs)
            if backward() != -1:  # which other threads may run
                raise RunError(
                    f"the model draws random numbers ({operator.name()}) in its backward pass, where those of the "
                    "forward pass cannot be drawn again: leave out activation checkpointing (torch.utils.checkpoint), "
                    "or the dropout inside it"
                )
            kwargs["generator"] = _local.generator
            return call(*args[:place], **kwargs)

    return draw


def _key() -> Any:
    """Return the dispatch key of the mode, or `None` where this torch has none."""
    try:
        return torch._C._dispatch_key_parse(_NAME)
    except (AttributeError, RuntimeError):
        return None


def _register() -> None:
    """Register the kernels: once a process, when this module is imported."""
    _libraries[:] = everything, ours = _Library("_", "IMPL"), _Library("aten", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, _NAME)
    for name in RANDOM:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments
            tensors = any(isinstance(argument.type, torch.TensorType) for argument in arguments)
            # one without a tensor fills a new one by an operator that has it, and there the device is known
            if tensors and any(argument.name == "generator" for argument in arguments):
                ours.impl(operator, _kernel(operator), _NAME)


_KEY = _key()
if _KEY is not None:
    _register()
