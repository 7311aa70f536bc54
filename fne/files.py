"""Files that are either old or new, never half: written beside, flushed to disk, renamed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; on any error, a full disk included, the old file stays and no scratch file does."""
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def torch_bytes(state: Any) -> bytes:
    """Return `state` as `torch.save` writes it; read it back with `weights_only=True`."""
    import torch

    buffer = io.BytesIO()  # into memory first: torch reports a full disk as an internal error, the file system does not
    torch.save(state, buffer)
    return buffer.getvalue()
