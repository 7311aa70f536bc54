"""Opening of EEG files through MNE: common channel names and types, a list of events, and findings in plain words."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fne.core.dataset import FileError, Finding
from fne.core.quiet import own_filters
from fne.data.eeg.channels import common_name
from fne.data.eeg.diagnose import compared, explain, length_finding, misnamed, one_line
from fne.data.eeg.events import event_names, read_events, taken_for_bad
from fne.data.eeg.find import FORMATS, extension, first_bytes
from fne.data.eeg.headers import Interrupted, edf_header, gdf_header, interrupted, signal_rates
from fne.data.eeg.quality import LEAVE_OUT, refuse, some
from fne.data.eeg.recording import Header, Source

if TYPE_CHECKING:
    import mne

    Recording: TypeAlias = mne.io.BaseRaw | mne.BaseEpochs

_TYPES = {
    "eog": r"EOG|^LOC$|^ROC$",
    "ecg": r"ECG|EKG",
    "emg": r"EMG",
    "stim": r"^STATUS$|STIM|TRIG|^STI ?\d+$",
    "resp": r"^RESP",
    "misc": r"^PHOTIC|^SPO2|^PLETH|^TEMP",
}
"""MNE's channel type -> pattern of upper-case channel names."""
_HARMLESS = re.compile(
    "does not conform to MNE naming conventions"  # about a file's name
    "|Limited .* annotation.* expanding outside"  # the last event lasts until the end
    "|measurement date|birthday|participants.tsv|scans.tsv"  # often removed to hide the person; no value depends on it
    "|Number of records from the header"  # `length_finding` says more
)
_LOSSES = (
    (
        "Scaling factor will not be defined|Physical range is not defined",
        "Correct their digital or physical minimum and maximum in the header if one of these channels is used",
    ),
    (
        "Invalid tag|Omitted",
        "It may be cut off: copy it again, and compare its length with what was recorded",
    ),
    ("MarkerFile", "Its events are missing: copy the .vmrk here, or name it in the line MarkerFile= of the .vhdr"),
    ("", "Compare the file with what was recorded"),
)
"""Pattern of MNE's warnings -> remedy; the first pattern that matches counts."""
_PROGRAMMERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning, ImportWarning)
"""Categories of warnings that concern MNE's code and not a file."""


def open_recording(source: Source, events: str = "auto") -> tuple[Recording, Header]:
    """Open a recording without reading its values, where its format permits.

    Channel names get the common spelling (`Fc5.` becomes `FC5`). Channels that the file calls EEG get another type if
    their names say so.

    Args:
        source: the recording.
        events: source of the events, see `fne.data.eeg.events.event_list`.

    Raises:
        FileError: the file cannot be opened; its finding says why and what to do.
    """
    findings: list[Finding] = []
    try:
        _told(misnamed(source.path), findings)
        _told(length_finding(source.path), findings)
        pieces = interrupted(source.path)
        recording = _read(source, findings)
        _told(_values_elsewhere(recording), findings)
        if not is_epochs(recording) and not recording.n_times:
            refuse("empty", "it has no values: 0 samples", "a recording", f"Copy or download it again; or {LEAVE_OUT}")
        rates = _own_rates(recording, source.path)
        with listening(source, findings):
            if pieces is not None:
                findings[:] = [f for f in findings if " annotation" not in f.found]  # MNE counts gaps in
                findings += _without_gaps(recording, pieces, source)
            findings += [*_spell(recording), *_set_types(recording)]
            header, noted = _header(recording, events)
            findings += noted
            header["uncalibrated"] = _uncalibrated(recording, source.path)
            if not is_epochs(recording):
                findings += taken_for_bad(recording.annotations.description)
    except FileError:
        raise
    except Exception as error:
        raise FileError(explain(error, source)) from error
    return recording, Header(**header, rates=rates, findings=tuple(dict.fromkeys(findings)))


@contextmanager
def listening(source: Source, findings: list[Finding]) -> Iterator[None]:
    """Turn MNE's warnings inside the block into findings; warnings that do not concern the values are dropped."""
    import mne

    # MNE issues warnings only at this log level; at "error" they would be lost.
    with own_filters() as heard, mne.use_log_level("WARNING"):
        warnings.simplefilter("always")
        yield
    for warning in heard:
        text = one_line(str(warning.message), source)
        if not issubclass(warning.category, _PROGRAMMERS) and not _HARMLESS.search(text):
            remedy = next(remedy for words, remedy in _LOSSES if re.search(words, text))
            findings.append(Finding("mne", f"MNE warns: {text}", "a file without this warning", remedy, "noted"))


def _told(finding: Finding | None, findings: list[Finding]) -> None:
    """Append a finding; raise `FileError` if the finding refuses the file."""
    if finding is not None and finding.action == "refused":
        raise FileError(finding)
    findings += [finding] if finding is not None else []


# ------------------------------------------------------------------------------------------------ opening
def _read(source: Source, findings: list[Finding]) -> Recording:
    """Try the readers of this format one after the other; if all fail, raise the error of the first."""
    first: Exception | None = None
    for read in _readers(source):
        heard: list[Finding] = []
        try:
            with listening(source, heard):
                recording = read()
        except FileError:
            raise
        except Exception as error:
            first = first or error
        else:
            findings += heard
            return recording
    raise first or ValueError(f"no reader knows the extension {source.path.suffix!r}")


def _readers(source: Source) -> list[Callable[[], Any]]:
    """Return the readers for a file: for continuous recordings, then for epochs where the format has them."""
    path, ending = source.path, extension(source.path)
    if source.root is not None:
        return [partial(_read_bids, path, source.root, name) for name in ("read_raw_bids", "read_epochs_bids")]
    names = FORMATS.get(ending, ())
    if ending == ".cnt":  # two manufacturers share the extension; ANT's files begin with RIFF
        names = names[1:] if first_bytes(path).startswith(b"RIFF") else names[:1]
    if path.name.split(".")[0].endswith(("-epo", "_epo")):
        names = names[::-1]
    return [partial(_read_file, path, name) for name in names]


def _read_file(path: Path, reader: str) -> Recording:
    import mne

    if reader == "read_epochs":  # projections are not applied, as in continuous recordings
        return mne.read_epochs(path, proj=False, preload=False)
    return getattr(mne.io, reader)(path, **_slow_codes(path))


def _slow_codes(path: Path) -> dict[str, list[str]]:
    """Return the reader's argument that names slow stim channels, so that MNE does not interpolate their codes."""
    signals = signal_rates(path)
    highest = max((rate for _, rate in signals), default=0.0)
    names = [name for name, rate in signals if rate < highest and re.search(_TYPES["stim"], name.upper())]
    return {"stim_channel": names} if names else {}


def _read_bids(path: Path, root: Path, reader: str) -> Recording:
    """Read a recording and its sidecars; `channels.tsv` may spell the channel names differently from the file."""
    import mne_bids

    options = _slow_codes(path)
    read = partial(getattr(mne_bids, reader), **({"extra_params": options} if options else {}))
    place = mne_bids.get_bids_path_from_fname(path, check=False).update(root=root)
    try:
        return read(place)
    except RuntimeError as error:
        if "hannel mismatch" not in str(error):  # channel names differ, or are in another order
            raise
    own = _read_file(path, FORMATS[extension(path)][reader != "read_raw_bids"]).ch_names
    renamed = read(place, on_ch_mismatch="rename")  # to the names of channels.tsv, without a comparison
    if [common_name(name) for name in own] == [common_name(name) for name in renamed.ch_names]:
        return renamed
    if set(own) == set(renamed.ch_names):
        return read(place, on_ch_mismatch="reorder")
    odd = [(a, b) for a, b in zip(own, renamed.ch_names, strict=True) if common_name(a) != common_name(b)]
    refuse(
        "channels",
        f"channels.tsv names other channels than the file, first {odd[0][1]!r} in the place of {odd[0][0]!r}",
        "the same channels in both",
        f"Correct channels.tsv, set data.bids=no to read the file without it, or {LEAVE_OUT}",
    )


def _values_elsewhere(recording: Recording) -> Finding | None:
    """Return the finding that the `.fdt` file of an EEGLAB recording is shorter or longer than it should be."""
    file = None if is_epochs(recording) else recording.filenames[0]
    if file is None or Path(file).suffix != ".fdt":
        return None
    return compared(Path(file), 4 * len(recording.ch_names) * recording.n_times)


def _own_rates(recording: Recording, path: Path) -> tuple[float, ...]:
    """Return the sampling rate of each channel in Hz if the rates differ, else an empty tuple.

    The signals of the file are the channels of the recording, in order. Through BIDS the channels may have other names
    or another order, but not both.
    """
    signals = signal_rates(path)
    names = recording.ch_names
    if len(signals) != len(names) or len({rate for _, rate in signals}) == 1:
        return ()
    by_name = dict(signals)
    if len(by_name) == len(names) and set(by_name) == set(names):
        return tuple(by_name[name] for name in names)
    return tuple(rate for _, rate in signals)


def _without_gaps(recording: mne.io.BaseRaw, pieces: Interrupted, source: Source) -> tuple[Finding]:
    """Move the events of an interrupted recording to their positions in its values, and mark each gap as a break."""
    import mne

    where, lost = pieces.gaps
    found = f"interrupted, with gaps of {some([f'{seconds:.6g} s' for seconds in lost]) or 'less than 1 ms each'}"
    if source.root is not None:
        remedy = "Set data.bids=no to take the events that are in the file itself, or export it again as EDF+C"
        refuse("gaps", f"{found}: it is open whether events.tsv counts that time", "a continuous recording", remedy)
    onset, duration, names = zip(*(pieces.events or [(0.0, 0.0, "EDGE")]), strict=True)
    begin, end = pieces.recorded(np.array(onset)), pieces.recorded(np.add(onset, duration))
    notes = mne.Annotations(begin, end - begin, names, recording.annotations.orig_time)
    notes.append(where, 0.0, "EDGE boundary")
    recording.set_annotations(notes)
    remedy = "Events are put where they are in what was recorded; no window or filter reaches over a gap"
    return (Finding("gaps", found, "a continuous recording", remedy, "repaired"),)


def _uncalibrated(recording: Recording, path: Path) -> dict[str, str]:
    """Return channel -> why its values have no scale, by the header of the file."""
    channels = recording.ch_names
    edf = edf_header(path)
    header = gdf_header(path) if extension(path) == ".gdf" else edf
    if header is None or not header.faults:
        return {}
    signals = [place for place in range(len(header.labels)) if edf is None or place not in edf.annotations]
    names = [common_name(header.labels[place]) for place in signals]
    # A sidecar may reorder channels by name; signals that share a name keep their positions.
    return {
        name if channels.count(name) == names.count(name) == 1 else channels[number]: header.faults[place]
        for number, (place, name) in enumerate(zip(signals, names, strict=True))
        if place in header.faults and number < len(channels)
    }


def _header(recording: Recording, events: str) -> tuple[dict[str, Any], list[Finding]]:
    """Return the fields of a recording's header except its findings, and the findings about its events."""
    findings: list[Finding] = []
    rate = float(recording.info["sfreq"])
    known: dict[str, Any] = {
        "channels": tuple(recording.ch_names),
        "types": tuple(recording.get_channel_types()),
        "rate": rate,
    }
    if is_epochs(recording):
        names, samples = event_names(recording), len(recording.times)
        known |= {"epochs": len(names), "tmin": float(recording.tmin), "tmax": float(recording.tmax)}
        known["seconds"] = len(names) * samples / rate
    else:
        listed, findings = read_events(recording, events)
        names = [name for _, _, name in listed]
        known["seconds"] = float(recording.n_times / rate)
    return {**known, "events": dict(sorted(Counter(names).items()))}, findings


def is_epochs(recording: Recording) -> bool:
    """Return whether a recording is cut into epochs already."""
    return hasattr(recording, "event_id")


def _spell(recording: Recording) -> list[Finding]:
    """Rename the channels of a recording, except those that would get the same name."""
    new = {name: common_name(name) for name in recording.ch_names}
    often = Counter(new.values())
    same = {target: [n for n in new if new[n] == target] for target, count in often.items() if count > 1}
    changed = {name: target for name, target in new.items() if target != name and target not in same}
    recording.rename_channels(changed)
    return [
        Finding(
            "channels",
            f"{' and '.join(names)} would all be called {target}, so they keep their names",
            "one channel of each name",
            "Name the one that is meant in data.channels",
            "noted",
        )
        for target, names in same.items()
    ]


def _set_types(recording: Recording) -> list[Finding]:
    """Set the types of channels that the file calls EEG and whose names say otherwise."""
    types = {
        name: kind
        for name, given in zip(recording.ch_names, recording.get_channel_types(), strict=True)
        for kind, pattern in _TYPES.items()
        if given == "eeg" and re.search(pattern, name.upper())
    }
    if not types:
        return []
    recording.set_channel_types(types, on_unit_change="ignore")
    named = ", ".join(f"{name} ({kind})" for name, kind in types.items())
    return [
        Finding(
            "types",
            f"the file calls all of them EEG, their names say otherwise: {named}",
            "types that fit the names",
            "Such channels are taken only if data.types or data.channels name them",
            "noted",
        )
    ]
