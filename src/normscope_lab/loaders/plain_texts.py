"""Plain text: a file, or all .txt files of a folder one after the other."""

from pathlib import Path

from normscope_lab.loaders.data_files import text


def text_files(data: Path) -> list[Path]:
    found = [data] if data.is_file() else sorted(data.glob("*.txt"))
    if not found:
        raise FileNotFoundError(f"{data} must be a text file or a folder with .txt files, and has none")
    return found


def whole_text(data: Path) -> str:
    return "\n".join(text(path) for path in text_files(data))
