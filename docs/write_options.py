"""Write docs/options.md from the settings that the commands are made of: python docs/write_options.py."""

from pathlib import Path

from iic_geotools.cli.app import option_name
from iic_geotools.settings import markdown_table
from iic_runtime.classifier import ClassifySettings
from iic_runtime.options import NameSettings, SegmentSettings

PAGE = Path(__file__).parent / "options.md"


def options_page() -> str:
    """Return the page."""
    return (
        "# Options\n\n"
        "Options of commands are keyword arguments of the functions behind them, with underscores: `--min-area 500` "
        "is `min_area=500`. This page is written by `python docs/write_options.py`.\n\n"
        "## iic-segment-raster, segment_raster\n\n"
        f"{markdown_table(SegmentSettings, option_name)}\n"
        "## iic-model name, name_model\n\n"
        f"{markdown_table(NameSettings, option_name)}\n"
        "## iic-classify, classify_images\n\n"
        f"{markdown_table(ClassifySettings, option_name)}"
    )


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
