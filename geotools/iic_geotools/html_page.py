"""The frame of the HTML reports: one file each, without scripts, fonts or files from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;--page:#f6f8fa;--card:#fff;--note:#fff8e5}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--page:#0d1117;--card:#161b22;
--note:#2b2410}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}
h1{margin:0 0 8px;font-size:26px}h2{margin:0 0 12px;font-size:18px}
header,section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px 20px;margin:0 0 16px}
dl{display:flex;flex-wrap:wrap;gap:6px 32px;margin:0}dt{color:var(--soft);font-size:12px}dd{margin:0}
.figure b{font-size:30px;margin-right:6px}.figure{margin:0}
table{border-collapse:collapse;font-size:13px}tr{border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500}
"""


def html_page(title: str, sections: Sequence[str], style: str) -> str:
    """Return a whole page; `style` adds to `STYLE`."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style.lstrip()}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def html_section(title: str, content: str) -> str:
    """Return a section with a heading; nothing without content."""
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def html_facts(facts: Mapping[str, str]) -> str:
    """Return names and values as a list in a row."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
    )
    return f"<dl>{items}</dl>"
