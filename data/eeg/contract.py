"""What all files of a federation must agree on: which channels in which order, and the sampling rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fne.core.dataset import Finding
from fne.core.errors import DataError, did_you_mean
from fne.data.eeg.quality import some
from fne.data.eeg.recording import Header, same_rate


@dataclass(frozen=True)
class Contract:
    """Channels in their order, sampling rate in Hz, and what each file had to say about it."""

    channels: tuple[str, ...]
    rate: float
    findings: Mapping[str, tuple[Finding, ...]]


def agree(
    headers: Mapping[str, Header], channels: str | Sequence[str], types: Sequence[str], resample: float | None
) -> Contract:
    """Return what files can be used as, each by its own name.

    Args:
        headers: of the files that could be opened, in order.
        channels: names, in the common spelling; `all`: those that most files have; `common`: those that all have.
        types: of the channels that are taken, where they are not named.
        resample: in Hz; `None`: the rate that most files have, all others are refused.

    Raises:
        DataError: no channel of these types, or none that all files share.
    """
    own = {
        name: tuple(c for c, t in zip(header.channels, header.types, strict=True) if t in types)
        for name, header in headers.items()
    }
    there = sorted({kind for header in headers.values() for kind in header.types})
    if isinstance(channels, str):
        if not any(own.values()):
            kinds = f"data.types = [{', '.join(types)}]; there are channels of type {', '.join(there)}"
            raise DataError(f"eeg_files: no file has a channel of {kinds}")
        chosen = _most(own) if channels == "all" else _common(own)
    else:
        chosen = tuple(channels)
        known = {channel for header in headers.values() for channel in header.channels}
        for channel in chosen:
            if channel not in known:
                raise DataError(
                    f"eeg_files: data.channels: no file has a channel {channel!r}{did_you_mean(channel, known)}; "
                    f"there are {some(sorted(known))}"
                )
    usual = _usual([header.rates_of(chosen)[1] for header in headers.values()])
    found = {
        name: (
            *_of_channels(header, own[name], chosen, channels),
            *_of_rate(header.rates_of(chosen)[1], usual, resample),
            *_of_slow(header, chosen),
        )
        for name, header in headers.items()
    }
    return Contract(chosen, resample or usual, found)


def _of_channels(
    header: Header, own: Sequence[str], chosen: Sequence[str], channels: str | Sequence[str]
) -> tuple[Finding, ...]:
    """Return which channels a file lacks, or has for nothing."""
    found = []
    lacking = [channel for channel in chosen if channel not in header.channels]
    more = [channel for channel in own if channel not in chosen]
    if lacking:
        found.append(
            Finding(
                "channels",
                f"{len(lacking)} of {len(chosen)} channels are missing: {some(lacking)}",
                f"the {len(chosen)} channels that {'were asked for' if channels != 'all' else 'most files have'}",
                "Set data: {channels: common} for those that all files share, or leave the file out by data.pattern",
                "refused",
            )
        )
    elif more and isinstance(channels, str):
        found.append(
            Finding(
                "channels",
                f"{len(more)} channels are not used: {some(more)}",
                f"the {len(chosen)} channels that {'all' if channels == 'common' else 'most'} files have",
                "Name the channels in data.channels if others are wanted",
                "noted",
            )
        )
    places = [header.channels.index(channel) for channel in chosen if channel in header.channels]
    if places != sorted(places) and isinstance(channels, str):  # names in the config say the order that is wanted
        order = f"channels in another order, beginning {some(own[:3])}"
        found.append(
            Finding("channels", order, f"the order {some(chosen[:3])} ...", "They are put in order by name", "repaired")
        )
    return tuple(found)


def _of_rate(rate: float, usual: float, resample: float | None) -> tuple[Finding, ...]:
    """Return how a file's sampling rate differs from that of most files: to resample all alike is no repair."""
    if same_rate(rate, usual):
        return ()
    found, expected = f"sampled at {rate:g} Hz", f"{usual:g} Hz, as most files have"
    if resample is not None:
        return (
            Finding("rate", found, expected, f"All files come to {resample:g} Hz, as data.resample says", "repaired"),
        )
    remedy = f"Set data: {{resample: {min(rate, usual):.10g}}} to bring all files to one rate"
    return (Finding("rate", found, expected, remedy, "refused"),)


def _of_slow(header: Header, chosen: Sequence[str]) -> tuple[Finding, ...]:
    """Return which of the chosen channels were sampled at a lower rate than the others of the file."""
    lowest, highest = header.rates_of(chosen)
    if same_rate(lowest, highest):
        return ()
    slow = [f"{name} ({rate:g} Hz)" for name in chosen if not same_rate(rate := header.rates_of([name])[0], highest)]
    found = f"channels sampled at less than the {highest:g} Hz of the others: {some(slow)}"
    remedy = f"They are brought to {highest:g} Hz, and filters must fit the lowest rate"
    return (Finding("rate", found, "one rate for all channels", remedy, "noted"),)


def _usual(rates: Sequence[float]) -> float:
    """Return the rate that most files have, as most of these write it."""
    often = max(rates, key=lambda rate: sum(same_rate(rate, other) for other in rates))
    return Counter(rate for rate in rates if same_rate(rate, often)).most_common(1)[0][0]


def _most(own: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the set of channels that most files have, in the order of the first of these files."""
    sets = Counter(frozenset(names) for names in own.values() if names)
    best = sets.most_common(1)[0][0]
    return next(names for names in own.values() if frozenset(names) == best)


def _common(own: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the channels that all files have, in the order of the first file."""
    shared = set.intersection(*map(set, own.values()))
    if not shared:
        poorest = min(own, key=lambda name: len(own[name]))
        raise DataError(
            f"eeg_files: data.channels = common: no channel is in all {len(own)} files; {poorest} has "
            f"{some(own[poorest]) or 'none'}: leave it out by data.pattern, or name the channels in data.channels"
        )
    return tuple(name for name in next(iter(own.values())) if name in shared)
