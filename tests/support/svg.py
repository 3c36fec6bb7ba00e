"""The page of the drawings in docs/images: light or dark as what is around it, the same bytes on every machine."""

from collections.abc import Iterable

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #424a53 }
  .name { font: 600 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .note { fill: #59636e }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .room { fill: #eef4fb; stroke: #7f9fc4 }
  .line { fill: none; stroke: #6e7781; stroke-width: 1.5 }
  .head { fill: #6e7781 }
  @media (prefers-color-scheme: dark) {
    text { fill: #c3ccd5 }
    .name { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #3d444d }
    .room { fill: #17253a; stroke: #4a6a94 }
    .line { stroke: #8b949e }
    .head { fill: #8b949e }
  }"""


def page(width: int, height: int, title: str, parts: Iterable[str], style: str = "") -> str:
    """A whole drawing of `parts`, in pixels; `title` is what a screen reader says, `style` goes behind that of all."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<title>{title}</title>",
            f"<style>{STYLE}{style}\n</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>",
        )
    )
