"""Search for EEG recordings: the main files in a folder, their subjects, and the other files that belong to each.

Nothing here needs MNE.
"""

from __future__ import annotations

import glob
import gzip
import importlib.util
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fne.core.errors import DataError, SettingError
from fne.data.eeg.recording import Source

FORMATS: dict[str, tuple[str, ...]] = {
    ".edf": ("read_raw_edf",),
    ".bdf": ("read_raw_bdf",),
    ".gdf": ("read_raw_gdf",),
    ".vhdr": ("read_raw_brainvision",),
    ".ahdr": ("read_raw_brainvision",),
    ".set": ("read_raw_eeglab", "read_epochs_eeglab"),
    ".fif": ("read_raw_fif", "read_epochs"),
    ".fif.gz": ("read_raw_fif", "read_epochs"),
    ".cnt": ("read_raw_cnt", "read_raw_ant"),
    ".mff": ("read_raw_egi",),
    ".egi": ("read_raw_egi",),
    ".raw": ("read_raw_egi",),
    ".cdt": ("read_raw_curry",),
    ".dap": ("read_raw_curry",),
    ".eeg": ("read_raw_nihon",),
    ".dat": ("read_raw_bci2k",),
    ".nxe": ("read_raw_eximia",),
    ".nedf": ("read_raw_nedf",),
    ".lay": ("read_raw_persyst",),
    ".ns3": ("read_raw_nsx",),
    ".mefd": ("read_raw_mef",),
}
"""Extension of a main file -> MNE's readers, in the order in which they are tried.

The table is kept by hand, since MNE's own table is private, includes MEG, near-infrared and eye trackers, accepts any
`.txt` and `.mat`, and lacks the readers of epochs.
"""
BINARY = (".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".set", ".cnt", ".mff")
"""Binary formats; files of other formats may be plain text, or begin with it."""
FOLDERS = (".mff", ".mefd")
"""Formats whose recording is a folder."""
_CLOSED = (*FOLDERS, ".ds")
"""Folders that are not searched; `.ds` is MEG and has an `.eeg` file of electrode positions."""
SHARED = {".eeg": (b"EEG-", b"QI-403A", b"DAE-2100D"), ".dat": (b"HeaderLen=", b"BCI2000V=")}
"""Extension that companions of other formats share -> first bytes of a main file (Nihon Kohden, BCI2000)."""
_OWNERS = {".eeg": (".vhdr", ".ahdr"), ".vmrk": (".vhdr", ".ahdr"), ".amrk": (".ahdr",), ".fdt": (".set",)}
"""Extension of a companion -> extensions of main files; without one in its folder, the companion is reported."""
_NO_RECORDING = re.compile(
    r"[-_](annot|ave|bem|bem-sol|cov|csd|dipoles|eve|fwd|ica|inv|lout|morph|proj|sol|sparse|src|stc|tfr|trans|vol)"
    r"\.fif(\.gz)?$"
)
"""Names of MNE's files that are no recordings."""
_NEXT = struct.pack(">5i", 115, 3, 4, 0, 2)
"""FIF tag `FIFF_REF_ROLE` with the int32 for a next file; the tag with the name of that file (118) follows."""
_TAIL = 1 << 20
"""Bytes at the end of a FIF file that are searched for `_NEXT`."""
_DESCRIPTION = "dataset_description.json"
_BIDS_FILE = re.compile(r"sub-[^/]+/(ses-[^/]+/)?eeg/[^/]+_eeg\.[^/]+")
_SIDECARS = ("events", "channels", "eeg", "electrodes", "coordsystem")


def extension(path: Path) -> str:
    """Return the extension in lower case, `.fif.gz` as one."""
    ending = path.suffix.lower()
    return ".fif.gz" if ending == ".gz" and Path(path.stem).suffix.lower() == ".fif" else ending


def first_bytes(path: Path, length: int = 256) -> bytes:
    """Return the first bytes of a file, none for a folder or a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------------ which files
def find(
    path: Path, pattern: str | Sequence[str] = "**/*", subject: str | None = None, bids: str = "auto"
) -> list[Source]:
    """Return the recordings of a file, a folder or a BIDS root, sorted by name.

    Hidden files are left out. In BIDS only the raw EEG of subjects counts, not `derivatives/` or `sourcedata/`.
    A companion without its main file, such as an `.eeg` without a `.vhdr`, is returned, so that opening it fails with
    the reason.

    Args:
        path: file, folder, or folder that is itself a recording (`.mff`).
        pattern: glob pattern below the folder, or several patterns.
        subject: regular expression that is searched for in a file's path below the folder. It has a group `subject`,
            and optionally `session`, `run`, `site`, `label`. `None`: see `owners`.
        bids: `yes`, `no`, or `auto` for BIDS where there is a `dataset_description.json`.

    Raises:
        DataError: no recording was found, the folder is not BIDS although `bids` is `yes`, or mne-bids is missing.
        SettingError: `subject` or `pattern` does not work for these files.
    """
    if not path.exists():
        raise DataError(f"eeg_files: {path} does not exist; set data.path to a file, a folder or a BIDS root")
    root = _bids_root(path, bids)
    if path.is_file() or extension(path) in FOLDERS:
        folder, files = path.parent, [path]
    else:
        folder, files = path, _recordings(path, [pattern] if isinstance(pattern, str) else pattern, root)
    names = [file.relative_to(folder).as_posix() for file in files]
    return [
        Source(file, name, root=root, **owner)
        for file, name, owner in zip(files, names, owners(names, subject), strict=True)
    ]


def _recordings(folder: Path, patterns: Sequence[str], root: Path | None) -> list[Path]:
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise SettingError("data.pattern", pattern, "a pattern below data.path, such as **/*.edf")
    names = sorted({name for one in patterns for name in glob.glob(one, root_dir=folder, recursive=True)})
    files = [folder / name for name in names if not _inside(name)]
    if root is not None:
        files = [file for file in files if _BIDS_FILE.fullmatch(file.absolute().relative_to(root).as_posix())]
    elif (folder / _DESCRIPTION).exists():
        files = [file for file in files if file.relative_to(folder).parts[0] not in ("derivatives", "sourcedata")]
    endings = {parent: {extension(file) for file in parent.iterdir()} for parent in {file.parent for file in files}}
    seen = set[tuple[Path, str]]()  # links to folders may form a cycle
    found = []
    for file in files:
        place = file.parent.resolve(), file.name
        if place not in seen and _is_main(file, endings[file.parent]):
            seen.add(place)
            found.append(file)
    if not found:
        others = Counter(extension(file) for file in files if not file.is_dir())
        rest = ", ".join(f"{count} {ending or 'without extension'}" for ending, count in others.most_common(4))
        kind = f"BIDS files sub-*/eeg/*_eeg.* below {root or folder}" if root else f"files {', '.join(FORMATS)}"
        raise DataError(
            f"eeg_files: {folder}: no EEG recording with data.pattern = {', '.join(patterns)}. Looked for {kind}; "
            f"found {rest or 'no other file'}. Set data.path to the folder above the recordings"
        )
    return found


def _inside(name: str) -> bool:
    """Return whether a path leads into a folder that is one recording."""
    return any(parent.suffix.lower() in _CLOSED for parent in PurePosixPath(name).parents)


def _is_main(file: Path, endings: set[str]) -> bool:
    """Return whether a reader opens this file, given the extensions of all files in its folder."""
    ending = extension(file)
    if file.is_dir():
        return ending in FOLDERS
    if ending in SHARED and first_bytes(file).startswith(SHARED[ending]):
        return True
    if ending in _OWNERS:
        beside = ending == ".vmrk" and file.with_suffix(".eeg").exists()  # the `.eeg` is reported already
        return not endings.intersection(_OWNERS[ending]) and not beside
    if ending.startswith(".fif"):
        return not _NO_RECORDING.search(file.name) and not _is_later_part(file)
    return ending in FORMATS and ending not in SHARED


def _bids_root(path: Path, bids: str) -> Path | None:
    """Return the BIDS root that `path` is, or is in."""
    if bids == "no":
        return None
    place = path.absolute()
    root = next((folder for folder in (place, *place.parents) if (folder / _DESCRIPTION).is_file()), None)
    if root is not None and root != place and not place.relative_to(root).parts[0].startswith("sub-"):
        root = None
    if root is None and bids == "yes":
        raise DataError(f"eeg_files: data.bids = yes, but {path} has no {_DESCRIPTION}; set data.path to the BIDS root")
    if root is not None and importlib.util.find_spec("mne_bids") is None:
        raise DataError(
            f"eeg_files: {root} is a BIDS data set, which needs mne-bids: pip install -e '.[bids]' in the clone; or "
            "set data.bids=no to read the files without what events.tsv and channels.tsv say"
        )
    return root


# ------------------------------------------------------------------------------------------------ what belongs to one
@dataclass(frozen=True)
class Folder:
    """Files of a folder, indexed for `companions`.

    Args:
        stems: name up to a dot -> files; `a.b.json` is listed under `a` and under `a.b`.
        lost: `.fdt` files without a `.set` of the same name.
        sidecars: BIDS sidecars, each with its entities except `space`.
    """

    stems: Mapping[str, Sequence[Path]]
    lost: Sequence[Path]
    sidecars: Sequence[tuple[frozenset[str], Path]]


def listed(folder: Path) -> Folder:
    """List a folder. Wrap the function in `functools.cache` for as long as the files do not change."""
    stems: dict[str, list[Path]] = {}
    lost, sidecars = [], []
    for file in folder.iterdir():
        for dot in re.finditer(r"\.", file.name):
            stems.setdefault(file.name[: dot.start()], []).append(file)
        if file.suffix == ".fdt":
            lost.append(file)
        *entities, suffix = file.name.split(".")[0].split("_")
        if suffix in _SIDECARS and file.suffix in (".tsv", ".json"):
            sidecars.append((frozenset(entity for entity in entities if not entity.startswith("space-")), file))
    lost = [file for file in lost if file.with_suffix(".set") not in stems.get(file.stem, ())]
    return Folder(stems, lost, sidecars)


def companions(source: Source, folder: Callable[[Path], Folder] = listed) -> tuple[Path, ...]:
    """Return the files that a recording's values or events may depend on, the main file first, then sorted.

    These are files of the same name with another extension, files that a BrainVision header names, parts of a split
    FIF, BIDS sidecars including inherited ones, and all files of a folder that is one recording. A file too many does
    little harm: a change of that file makes the cache read the recording again.

    Args:
        source: the recording.
        folder: function that lists a folder, such as `functools.cache(listed)` for many recordings of one folder.

    Raises:
        OSError: a header cannot be read.
    """
    path, ending = source.path, extension(source.path)
    if path.is_dir():
        return (path, *sorted(file for file in path.rglob("*") if file.is_file()))
    stem = path.name[: -len(ending) or None]
    there = folder(path.parent)
    found = {file for file in there.stems.get(stem, ()) if extension(file) in SHARED or extension(file) not in FORMATS}
    if ending in (".vhdr", ".ahdr"):
        found |= {path.parent / name for _, _, name in header_links(path)}
    elif ending == ".set":  # the .set names the .fdt with its values, which may have another name
        found |= set(there.lost)
    elif ending.startswith(".fif"):
        found |= set(_later_parts(path))
    if source.root is not None:
        own = set(path.name.split("_")[:-1])
        for above in (parent for parent in path.absolute().parents if parent.is_relative_to(source.root)):
            found |= {file for entities, file in folder(above).sidecars if entities <= own}
    return (path, *sorted(file for file in found - {path} if file.is_file()))


def header_links(path: Path) -> list[tuple[int, str, str]]:
    """Return line number, key and file name of each file that a BrainVision header names."""
    stem, found = path.stem, []
    for number, line in enumerate(path.read_text("latin-1").splitlines(), 1):
        key, _, name = line.partition("=")
        if key.strip() in ("DataFile", "MarkerFile") and name.strip():
            found.append((number, key.strip(), name.strip().replace("$b", stem)))
    return found


def next_part(path: Path) -> Path | None:
    """Return the file in which a FIF file says that it continues, if there is one."""
    try:
        if extension(path) == ".fif.gz":
            with gzip.open(path) as packed:
                end = packed.read()[-_TAIL:]
        else:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL))
                end = file.read()
    except (OSError, EOFError):
        return None
    tags = end[found + len(_NEXT) :] if (found := end.rfind(_NEXT)) >= 0 else b""
    if len(tags) < 16 or struct.unpack_from(">i", tags)[0] != 118:
        return None
    return path.parent / tags[16 : 16 + struct.unpack_from(">i", tags, 8)[0]].decode("latin-1")


def _later_parts(path: Path) -> Iterator[Path]:
    seen = {path}
    while (following := next_part(path)) is not None and following not in seen:
        yield following
        seen.add(following)
        path = following


def _is_later_part(file: Path) -> bool:
    """Return whether another file continues in this one; only files that are named as parts are considered."""
    match = re.fullmatch(r"(.*_split-)(\d+)(_.*)|(.*)-(\d+)(\.fif(?:\.gz)?)", file.name)
    if match is None:
        return False
    head, number, tail = match.group(1, 2, 3) if match[1] else match.group(4, 5, 6)
    before = f"{int(number) - 1:0{len(number)}d}" if match[1] else f"-{int(number) - 1}"
    names = {f"{head}{before}{tail}", *([f"{head}{tail}"] if not match[1] else [])}
    return any(next_part(file.with_name(name)) == file for name in names)


# ------------------------------------------------------------------------------------------------ whose they are
GROUPS = ("subject", "session", "run", "site", "label")

_KNOWN = (
    r"(?P<subject>S\d{3})(?P<run>R\d{2})",  # eegmmidb
    r"(?P<subject>[AB]0\d)(?P<session>(0\d)?[TE])",  # BCI competition IV, 2a and 2b
    r"(?P<subject>S[CT]4\d\d)(?P<session>\d)\w\d-PSG",  # Sleep-EDF: two nights of each subject
    r"(?P<subject>[a-z]{8}|\d{8})_(?P<session>s\d{3})_(?P<run>t\d{3})",  # Temple University
)
"""File names of common data sets in which a subject has several files."""

_NUMBERED = re.compile(
    r"(?!day|night|week|month|visit|time|ses|run|block|site|cent|hosp|lab|group|cond)\D*\d+\D*", re.IGNORECASE
)
"""Folder names of subjects such as `p01`, `sub_2` or `S003`, but not `day1`."""


def owners(names: Sequence[str], subject: str | None) -> list[dict[str, str]]:
    """Return subject, session, run, site and label of each file, as far as its path says.

    Args:
        names: paths below the data set's folder, with `/`.
        subject: regular expression with a group `subject`. `None`: the subject follows from BIDS entities
            (`sub-01_ses-2_run-3`), else from the file names of common data sets, else from the folder directly below
            the data set's folder, else from the file's name.

    Raises:
        SettingError: the expression does not work for these files, or without one the subject is ambiguous.
    """
    if subject is None:
        found = [_usual(name) for name in names]
        _refuse_guess([name for name, owner in zip(names, found, strict=True) if "guess" in owner])
    else:
        expression = _expression(subject)
        matches = [expression.search(name) for name in names]
        bad = [name for name, match in zip(names, matches, strict=True) if not (match and match["subject"])]
        if bad:
            allowed = (
                f"an expression that finds a subject in the path of each file: {len(bad)} of {len(names)} have none, "
                f"the first is {bad[0]!r} (data.pattern leaves files out)"
            )
            raise SettingError("data.subject", subject, allowed)
        found = [match.groupdict(default="") for match in matches if match]
    return [{key: owner.get(key, "") for key in GROUPS} for owner in found]


def _expression(subject: str) -> re.Pattern[str]:
    try:
        expression = re.compile(subject)
    except re.error as error:
        raise SettingError("data.subject", subject, f"a regular expression ({error})") from error
    if "subject" not in expression.groupindex:
        raise SettingError("data.subject", subject, "a regular expression with a group (?P<subject>...)")
    return expression


def _usual(name: str) -> dict[str, str]:
    """Return the subject of a file, and what else its name says, by the usual forms of names."""
    path = PurePosixPath(name)
    # A later entity replaces an earlier one: the file's name is more specific than a folder's.
    entities = dict(re.findall(r"(?:^|[/_])(sub|ses|run)-([^/_.]+)", name))
    if "sub" in entities:
        return {"subject": entities["sub"], "session": entities.get("ses", ""), "run": entities.get("run", "")}
    stem = _stem(path)
    for known in _KNOWN:
        if match := re.fullmatch(known, stem):
            return match.groupdict(default="")
    if len(path.parts) > 2:
        # Do not guess between folder and file: a person taken for two subjects would be in training and test.
        allowed = (
            f"an expression that finds the subject of {name!r}, whose path has no usual form; such as "
            "'^(?P<subject>[^/]+)/' where the first folder is a subject's"
        )
        raise SettingError("data.subject", None, allowed)
    return {"subject": path.parent.name, "guess": "folder"} if path.parent.name else {"subject": stem}


def _refuse_guess(names: Sequence[str]) -> None:
    """Refuse files of one name in several folders that are not numbered as subjects are."""
    folders: dict[str, set[str]] = {}
    for path in map(PurePosixPath, names):
        if not _NUMBERED.fullmatch(path.parent.name):
            folders.setdefault(_stem(path), set()).add(path.parent.name)
    for stem, where in folders.items():
        if len(where) > 1:
            one, other = sorted(where)[:2]
            allowed = (
                f"an expression that says who is a subject: {one!r} and {other!r}, or {stem!r}, which is in both? "
                "Such as '^(?P<subject>[^/]+)/' for the folder, "
                "'^(?P<session>[^/]+)/(?P<subject>[^/.]+)' for the file"
            )
            raise SettingError("data.subject", None, allowed)


def _stem(path: PurePosixPath) -> str:
    """Return a file's name without its extension; `.fif.gz` counts as one extension."""
    return re.sub(r"(\.fif\.gz|\.[^.]*)$", "", path.name, count=1, flags=re.IGNORECASE)
