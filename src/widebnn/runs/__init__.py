"""Runs on disk: atomic files with checksums, folders that a run resumes from, the command that began one."""

from widebnn.runs.command import begin, begun
from widebnn.runs.files import (
    DamageError,
    Record,
    damaged_files,
    locked,
    make_folder,
    output,
    read_record,
    replacing,
    write_bytes,
    write_checksums,
    write_record,
)
from widebnn.runs.folder import RunFolder, open_run

__all__ = [
    "DamageError",
    "Record",
    "RunFolder",
    "begin",
    "begun",
    "damaged_files",
    "locked",
    "make_folder",
    "open_run",
    "output",
    "read_record",
    "replacing",
    "write_bytes",
    "write_checksums",
    "write_record",
]
