"""PyOpenGL's OSMesa platform with the library taken from the wheel `lavavu-osmesa`.

Imported by PyOpenGL itself, by name, once `gl.py` has chosen that wheel.
"""

from __future__ import annotations

from OpenGL.platform.osmesa import OSMesaPlatform

from ctrlformer.envs.gl import load_osmesa_from_wheel


class WheelPlatform(OSMesaPlatform):  # type: ignore[misc]  # PyOpenGL has no types
    """OSMesa from the wheel."""

    GL = load_osmesa_from_wheel()
