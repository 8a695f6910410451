"""Files of a data folder."""

from pathlib import Path

from iic_geotools.errors import DataError


def find_files(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """Return the files under a folder that match any of the patterns, in order; absolute paths stay as they are.

    Raises:
        DataError: A pattern matches nothing.
    """
    files: list[str] = []
    for pattern in patterns:
        if Path(pattern).is_absolute():  # a file that comes with this package
            files.append(pattern)
            continue
        matches = sorted(str(path) for path in folder.glob(pattern))
        if not matches:
            raise DataError(f"There is no {pattern} in {folder}: name another folder with `data`.")
        files += matches
    return files
