"""Which tool wrote a file, by what is in it, and its figures."""

from typing import Any

import msgspec

from decodegap.explain.foreign.figure import READ, BadForeignFile, ForeignFigure
from decodegap.explain.foreign.llama_bench import is_llama_bench, read_llama_bench
from decodegap.explain.foreign.optimum import is_optimum, read_optimum
from decodegap.explain.foreign.vllm import is_vllm, is_vllm_rows, read_vllm, read_vllm_rows


def read_foreign(data: bytes) -> list[ForeignFigure]:
    """Every figure of a decode in another tool's file.

    Raises:
        BadForeignFile: not JSON, of no tool that is read, or without a field that is needed.
    """
    document = _decode(data)
    rows = document if isinstance(document, list) else [document]
    if is_llama_bench(rows):
        return read_llama_bench(rows)
    if is_vllm_rows(rows):
        return read_vllm_rows(rows)
    if is_vllm(document):
        return read_vllm(document)
    if is_optimum(document):
        return read_optimum(document)
    if isinstance(document, dict) and "schema_version" in document:
        raise BadForeignFile("this is a record of ours; `decodegap report` reads its folder")
    raise BadForeignFile(f"no tool that is read wrote this; what is read: {READ}")


def _decode(data: bytes) -> Any:
    """One JSON document, or a list of the lines' where each line is one."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    for decode in (msgspec.json.decode, msgspec.json.Decoder().decode_lines):
        try:
            return decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    raise BadForeignFile(f"not JSON, or cut short; what is read: {READ}")
