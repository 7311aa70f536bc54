"""Nodes: the state of each data owner at a worker, with secrets, policy, and privacy account."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fne.config import registry, settings
from fne.core import randomness
from fne.core.dataset import Samples
from fne.core.errors import FneError, RefusedError
from fne.core.hidden import Hidden
from fne.core.messages import Header, Request, Scalar, Tensors
from fne.federation import wire
from fne.privacy.draws import Draws, key_of
from fne.privacy.policy import KEY_BYTES, Ledger, Policy
from fne.problems.objective import Objective

if TYPE_CHECKING:
    from fne.secure.session import Session


class Secrets(Hidden):
    """A node's secret key and its state of a run's secure sums, which are never printed, copied or serialised.

    Args:
        key: 32 bytes; at a real site from the site's own folder, in a simulation derived from the run's seed.
        simulated: whether the key is derived in this way: reports then say "simulated privacy".
    """

    __slots__ = ("_key", "answered", "session", "simulated", "tried")

    def __init__(self, key: bytes, *, simulated: bool) -> None:
        self._key = key
        self.simulated = simulated
        self.session: Session | None = None
        """Session of secure sums; it ends with the process, so a resumed run makes a new session."""
        self.answered: dict[tuple[str, str], int] = {}
        """Run and kind -> the last step of a secure sum that the node answered; the entries outlive sessions."""
        self.tried: dict[tuple[str, str], tuple[int, set[bytes]]] = {}
        """Run and kind -> the last step of a secure sum whose work was begun, and digests of the work."""

    @classmethod
    def simulate(cls, seed: int, node: str) -> Secrets:
        """Derive a reproducible key for a simulated node."""
        return cls(hashlib.blake2b(f"simulated:{seed}:{node}".encode(), digest_size=32).digest(), simulated=True)

    def draws(self, *address: bytes | memoryview) -> Draws:
        """Return the stream of private random numbers with this address, always the same."""
        return Draws(key_of(self._key, *address))

    def derived(self, purpose: str) -> bytes:
        """Return 32 bytes for a purpose, always the same, which nobody without the key can compute."""
        return hashlib.blake2b(purpose.encode(), key=self._key, digest_size=32, person=b"fne/purpose").digest()


@dataclass
class Node:
    """One data holder: its samples (on the worker's device), its memory between steps, its secrets.

    In a search the node has an `objective` in place of samples. `shift` is the largest shift of inputs in training,
    drawn anew each time, see `fne.learning.local_training`. `policy` says what the owner lets the node answer, `ledger`
    is the node's account; `run` is the run that the node takes part in, `floor` the first step that it still answers. A
    task replaces the tensors in `memory` and does not write into them: a failed task is undone by name.
    """

    name: str
    data: Samples
    secrets: Secrets
    memory: dict[str, Tensor] = field(default_factory=dict)
    shift: int = 0
    objective: Objective | None = None
    policy: Policy = field(default_factory=Policy)
    ledger: Ledger = field(default_factory=Ledger)
    run: str | None = None
    floor: int = 0

    def allow(self, request: Request, parties: int = 1) -> None:
        """Check a request against the node's policy, and charge the cost of the answer to the node's account.

        Args:
            request: a request whose task is not part of the secure-sum protocol, but may be carried by a secure sum.
            parties: number of nodes whose noise is in what the server sees: more than one where the server sees only
                their sum.

        Raises:
            RefusedError: the policy does not allow the answer.
            FneError: the task or one of its options does not exist.
        """
        run, step = request.header.run, request.header.step
        self.policy.check_task(request.task, task_of(request).keywords, step)
        if self.policy.tasks is not None:
            if run != (self.run if self.run is not None else run):
                raise RefusedError(f"this node takes part in run {self.run!r}, and not in {run!r}")
            if step < self.floor:
                raise RefusedError(
                    f"this node was asked for what a run ends with from step {self.floor} on: steps do not go back to "
                    f"{step}"
                )
        charge = registry.traits("task", request.task).get("charge")
        releases = tuple(charge(request, self.name, parties)) if charge else ()
        self.policy.check_releases(request.task, releases)
        if releases:
            self.ledger.add(self._key(request), releases, self.policy)
        self.run, self.floor = run, max(self.floor, self.policy.first_step(request.task))

    def generator(self, header: Header, purpose: str) -> torch.Generator:
        """Return the public generator for this step: anybody who knows the run's seed can repeat it."""
        return randomness.generator(header.seed, header.step, header.attempt, self.name, purpose)

    def draws(self, header: Header, purpose: str, *values: Tensor) -> Draws:
        """Return private random numbers that the server cannot repeat: for noise, and for choices that stay here.

        The stream's address is the purpose, the whole header, and the values that the numbers are used on. If all of
        these are the same, the stream is the same and reveals nothing new; otherwise the stream differs, because the
        difference of two answers with the same noise would have no noise.
        """
        said = (header.protocol, header.run, header.seed, header.step, header.attempt, self.name, purpose)
        return self.secrets.draws(repr(said).encode(), *_written(values))

    def answering(self, request: Request) -> Callable[..., Draws]:
        """Return `draws(purpose, *values)` for the answer to a request, with the request as part of the address."""
        key = self._key(request)
        address = torch.frombuffer(bytearray(key), dtype=torch.uint8)

        def draws(purpose: str, *values: Tensor) -> Draws:
            if values:
                digest = hashlib.blake2b(b"".join(_written(values)), digest_size=16).digest()
                self.ledger.hides(key, purpose, digest, self.policy)
            return self.draws(request.header, purpose, address, *values)

        return draws

    def _key(self, request: Request) -> bytes:
        """Return a digest of a request to this node: of the header and of the content."""
        header, given = request.header, payload_of(request, self)
        said = (header.protocol, header.run, header.seed, header.step, header.attempt, request.task)
        made = hashlib.blake2b(
            repr((said, sorted(request.options.items()), sorted(given))).encode(), digest_size=KEY_BYTES
        )
        for part in _written([given[name] for name in sorted(given)]):
            made.update(part)
        return made.digest()


def task_of(request: Request) -> functools.partial[Iterator[Tensors]]:
    """Return a request's task with all options bound; it is called once for each worker with worker, nodes and request.

    Raises:
        FneError: the task or one of its options does not exist.
    """
    task = registry.load("task", request.task)
    odd = [key for key, value in request.options.items() if not isinstance(value, int | float | str | bool)]
    if odd:
        raise FneError(f"task {request.task!r}: {odd[0]}: must be a number, text, or true or false")
    options = _checked(task, request.task, tuple((k, type(v), v) for k, v in request.options.items()))
    return functools.partial(task, **options)


def _written(values: Sequence[Tensor]) -> Iterator[bytes | memoryview]:
    """Yield tensors as bytes that distinguish them."""
    for tensor in values:
        yield repr((tensor.dtype, tuple(tensor.shape))).encode()
        yield wire.raw_bytes(tensor)


def payload_of(request: Request, node: Node) -> Tensors:
    """Return the request's tensors for this node: the common ones and its private ones."""
    return request.addressed(node.name)


@functools.lru_cache(maxsize=64)  # options seldom change from step to step
def _checked(
    task: Callable[..., Iterator[Tensors]], name: str, options: tuple[tuple[str, type, Scalar], ...]
) -> dict[str, Any]:
    """Return a request's validated options; raises `FneError` that names the mistake."""
    model = settings.model_of("options", registry.declared(task))
    made, mistakes = settings.check(model, {key: value for key, _, value in options}, f"task {name!r}")
    if mistakes:
        raise FneError(f"task {name!r}: " + "; ".join(f"{m.key}: {m.text}" for m in mistakes))
    return made
