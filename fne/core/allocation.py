"""Memory guard: estimates the size of each tensor that a config asks for before torch allocates the tensor.

A count of a config, such as a population or the neurons of a layer, becomes memory where a tensor gets its shape. The
guard checks tensors at that place, so no method, model or data set, plugins included, has to declare what its settings
cost.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fne.core.errors import FneError, RunError, SettingError

SMALL = 2**24
"""Bytes up to which tensors are not checked: to ask the operating system takes longer than to make them."""
_MAKERS = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm,
    torch.arange, torch.linspace, torch.eye,
}  # fmt: skip
_METHODS = {
    Tensor.repeat, Tensor.repeat_interleave, torch.repeat_interleave,
    Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full,
}  # fmt: skip
_LARGEST_ELEMENT = 16
"""Bytes of a complex number of torch."""
_NO_SIZES = ("seed", "memory")
"""Last words of keys whose numbers count nothing."""
_REFUSED = re.compile(
    "can't allocate memory|not enough memory|out of memory|array is too big|calculation overflowed"
    "|multiplication overflow|without overflow|Overflow when unpacking|too large to convert to C"
)
"""Messages of torch and NumPy for too little memory and for sizes beyond their integer range."""


@contextlib.contextmanager
def bounded(tree: Mapping[str, Any], available: Callable[[torch.device], int] | None = None) -> Iterator[None]:
    """Refuse tensors that do not fit into memory, before they are made, and say which number of a config is too large.

    Other objects, such as NumPy arrays, are refused by their allocator; its error is reported in the same words.

    Args:
        tree: a config's plain values; the error names the key whose number occurs in the tensor's shape.
        available: returns the bytes that a device has left; by default the operating system is asked.

    Raises:
        SettingError: a number of the config is too large for the memory.
        RunError: the memory is too small, and no single number of the config is to blame.
    """
    with out_of_memory_told(tree), _Guard(tree, available or left):
        yield


@contextlib.contextmanager
def out_of_memory_told(tree: Mapping[str, Any]) -> Iterator[None]:
    """Turn an allocator's refusal into an error in words; arguments and errors are those of `bounded`."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        refused = isinstance(error, MemoryError) or _REFUSED.search(str(error))
        if isinstance(error, FneError) or not refused:
            raise
        why = " ".join(str(error).split())[:200] or "Python has no memory left"
        sizes = re.search(r"sizes=\[([\d, ]*)\]", why)
        raise _refusal(tree, map(int, re.findall(r"\d+", sizes[1])) if sizes else (), why) from None


def check_counts(
    section: str, declared: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any], each: Mapping[str, int]
) -> None:
    """Refuse counts of objects, made one after the other, that together do not fit into memory.

    Args:
        section: section of the settings, for the error.
        declared: declared settings of a registered object; a setting's unit says what is counted.
        values: values of the settings.
        each: bytes of one object by unit, such as `{"models": 31400}`.

    Raises:
        SettingError: for the first number that is too large.
    """
    for key, (annotation, _) in declared.items():
        note = next(iter(getattr(annotation, "__metadata__", ())), None)
        unit = str((getattr(note, "json_schema_extra", None) or {}).get("unit"))
        number = values.get(key)
        size = number * each.get(unit, 0) if isinstance(number, int) else 0
        if size > SMALL and size > (room := left(torch.device("cpu"))):
            why = f"so many {unit} take {in_words(size)} at least, and {in_words(room)} are available"
            raise SettingError(f"{section}.{key}", number, f"smaller: {why}; or take a machine with more memory")


class _Guard(TorchFunctionMode):
    def __init__(self, tree: Mapping[str, Any], available: Callable[[torch.device], int]) -> None:
        super().__init__()
        self._tree, self._available = tree, available

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        asked = func in _MAKERS or (func in _METHODS and _by_numbers(*args[1:], *given.values()))
        if asked and not _surely_small(func, args, given):
            self._check(func, args, given)
        return func(*args, **given)

    def _check(self, func: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Raise where the result is too large; its shape comes from torch's device `meta`, which stores nothing."""
        device = torch.device(
            given.get("device") or (args[0].device if func in _METHODS else torch.get_default_device())
        )
        plain = {key: value for key, value in given.items() if key not in ("generator", "out", "pin_memory")}
        if func in _METHODS:
            args = (args[0].to("meta"), *args[1:])
            plain.pop("device", None)
        else:
            plain["device"] = "meta"
        made: Tensor = func(*args, **plain)
        size = made.numel() * made.element_size()
        if size > SMALL and device.type != "meta" and size > (room := self._available(device)):
            shape = " x ".join(map(str, made.shape))
            why = f"a tensor of {shape} numbers takes {in_words(size)}, and {in_words(room)} are available"
            raise _refusal(self._tree, made.shape, why)


def _surely_small(func: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    """Return whether whole numbers prove that a call's result is small: torch's first answer about a shape takes 0.5 s.

    A result has no more elements than the product of these numbers, except that of `eye`, which has their square, and
    that of a method, whose tensor has elements already. A number that is not whole is a value, except in `arange`.
    """
    numbers = [*_numbers(args), *_numbers(given.values())]
    if func is torch.arange and not all(isinstance(number, int) for number in numbers):
        return False
    elements = 2 * math.prod(max(1, abs(number)) for number in numbers if isinstance(number, int))
    elements = elements**2 if func is torch.eye else elements
    return _LARGEST_ELEMENT * elements * (args[0].numel() if func in _METHODS else 1) <= SMALL


def _numbers(values: Iterable[Any]) -> Iterator[int | float]:
    """Yield the numbers among arguments, including those of shapes."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


def _by_numbers(*given: Any) -> bool:
    """Return whether numbers determine a result's size: tensors that do so exist already and are about as large."""
    return bool(given) and not any(isinstance(value, Tensor) for value in given)


def _refusal(tree: Mapping[str, Any], shape: Iterable[int], why: str) -> FneError:
    """Return the error: about the key whose number is in the shape, else about the config's largest counts."""
    counts = sorted(_counts(tree), key=lambda count: -count[1])
    sides = sorted(shape, reverse=True)
    for place, side in enumerate(sides):
        if math.prod(sides[place:]) <= SMALL:  # a number of these is not to blame
            break
        for made in (_is_side, _divides_side):
            for key, number in counts:
                if number > 1 and made(number, side):
                    return SettingError(key, number, f"smaller: {why}; or take a machine with more memory")
    largest = ", ".join(f"{key} = {number}" for key, number in counts[:3])
    return RunError(f"the memory is too small: {why}; make the config's numbers smaller, of which the largest are "
                    f"{largest}, or take a machine with more memory")  # fmt: skip


def _is_side(number: int, side: int) -> bool:
    return abs(number - side) <= 1 or number == 2 * side  # or ends of intervals, or pairs


def _divides_side(number: int, side: int) -> bool:
    """Return whether a side is a multiple of a number, and the number is the larger of the two factors."""
    return side % number == 0 and number * number >= side


def _counts(tree: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Yield the dotted key and the value of each whole number that counts something."""
    if isinstance(tree, Mapping):
        for name, below in tree.items():
            yield from _counts(below, f"{key}.{name}".lstrip("."))
    elif isinstance(tree, list | tuple):
        for below in tree:
            yield from _counts(below, key)
    elif isinstance(tree, int) and not isinstance(tree, bool) and not key.endswith(_NO_SIZES):
        yield key, tree


def left(device: torch.device) -> int:
    """Return the bytes that a device has left; for a CPU the least of what machine, control group and limit leave."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    rooms = [2**63]
    with contextlib.suppress(OSError, AttributeError):
        machine = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        rooms += [1024 * int(machine[1])] if machine else []
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        rooms.append(max(0, limit - used))
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            rooms.append(max(0, most - pages * resource.getpagesize()))
    return min(rooms)


def in_words(size: int) -> str:
    """Return a number of bytes with a unit, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} TB" if size < 1000 else f"{size:.1e} TB"
