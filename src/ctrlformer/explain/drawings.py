"""Pictures of attention and similarity, as the bytes of PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ctrlformer.explain.similarity import Similarity

Picture = NDArray[np.uint8]  # (H, W, 3)
GAP = 6  # pixels between pictures of a sheet
COLOURS, STRENGTH = "inferno", 0.75
BAND = "#0b5fa5"


def overlaid(frame: Picture, attention: NDArray[np.float32]) -> Picture:
    """A frame (H, W, 3) under its map (H, W): what is looked at glows, the rest stays."""
    glow = matplotlib.colormaps[COLOURS](attention)[..., :3] * 255
    cover = STRENGTH * attention[..., None]
    mixed: Picture = np.rint((1 - cover) * frame + cover * glow).astype(np.uint8)
    return mixed


def sheet(rows: Sequence[Sequence[Picture]], zoom: int = 2) -> bytes:
    """Pictures of one size in rows, side by side, as a PNG."""
    height, width = rows[0][0].shape[:2]
    across, down = width * zoom + GAP, height * zoom + GAP
    canvas = Image.new("RGB", (across * max(map(len, rows)) - GAP, down * len(rows) - GAP), "white")
    for line, row in enumerate(rows):
        for column, picture in enumerate(row):
            large = Image.fromarray(picture).resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
            canvas.paste(large, (across * column, down * line))
    return _png(canvas)


def captioned(picture: Picture, text: str, size: int) -> Picture:
    """One picture of a film, (size, size, 3), with a line of text running along its foot."""
    large = Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(large)
    draw.rectangle((0, size - 20, size, size), fill=(0, 0, 0))
    draw.text((6, size - 16), text, fill=(255, 255, 255))
    return np.asarray(large)


def heat_map(found: Similarity) -> bytes:
    """Cosines as a square of numbers."""
    count = len(found.tasks)
    figure = Figure(figsize=(2.2 + 0.9 * count, 1.6 + 0.9 * count), layout="constrained")
    axes = figure.subplots()
    axes.imshow(found.cosines, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.set_xticks(range(count), found.tasks, rotation=40, ha="right")
    axes.set_yticks(range(count), found.tasks)
    for row, column in np.ndindex(count, count):
        value = found.cosines[row][column]
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if abs(value) > 0.6 else "black")
    return _figure_png(figure)


def chord_diagram(found: Similarity) -> bytes:
    """Tasks on a circle; a band between two is the wider and the darker the more alike they are (Figure 5)."""
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    count = len(found.tasks)
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
    for row in range(count):
        for column in range(row):
            _band(axes, angles[row], angles[column], max(0.0, found.cosines[row][column]))
    for angle, task in zip(angles, found.tasks, strict=True):
        axes.plot(np.cos(angle), np.sin(angle), "o", color=BAND, markersize=9)
        side = "center" if abs(np.cos(angle)) < 0.2 else "left" if np.cos(angle) > 0 else "right"
        axes.text(1.12 * np.cos(angle), 1.12 * np.sin(angle), task, ha=side, va="center", fontsize=10)
    axes.set(xlim=(-2.2, 2.2), ylim=(-1.4, 1.4), aspect="equal")
    axes.axis("off")
    return _figure_png(figure)


def _band(axes: Axes, start: float, end: float, likeness: float) -> None:
    places = [(np.cos(start), np.sin(start)), (0.0, 0.0), (np.cos(end), np.sin(end))]
    outline = Outline(places, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3])
    axes.add_patch(
        PathPatch(outline, fill=False, edgecolor=BAND, linewidth=0.5 + 13 * likeness, alpha=0.1 + 0.8 * likeness)
    )


def _figure_png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
