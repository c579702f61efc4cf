"""Choose how pictures are drawn: EGL, else OSMesa, else the OSMesa inside the wheel `lavavu-osmesa`.

dm_control picks a window system by default, which a server does not have, and a wrong first try cannot
be undone within a process. So each library is asked through ctypes, without side effects, before
dm_control or PyOpenGL is imported. A choice in the environment variable MUJOCO_GL is kept.

Mesa's drivers load libLLVM. Importing triton after that, as torch does later if it is installed, is a segmentation
fault; the other order works. So triton is imported before any OpenGL library is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ctrlformer.errors import RenderError

FIX = (
    "install Debian's libegl1 libegl-mesa0 libgl1-mesa-dri libosmesa6, "
    "or without root: pip install --no-deps lavavu-osmesa"
)

_EGL_PLATFORM_DEVICE = 0x313F


@functools.cache
def use_backend() -> str:
    """Make dm_control draw without a screen, and say how: "egl", "osmesa" or "osmesa-wheel".

    To be called before dm_control is imported; later calls only repeat the answer.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    if sys.platform != "linux" or "dm_control._render" in sys.modules:
        return wanted or "glfw"  # another system's own way, or what the user has loaded already
    _import_triton()
    # Mesa's software renderer: a picture this small is one tile, and threads of its own only make it wait.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    if wanted not in ("", "egl", "osmesa"):
        return wanted  # the user's own way
    for name, works in BACKENDS.items():
        library = name.removesuffix("-wheel")
        if wanted in ("", library) and works():
            os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = library
            if name == "osmesa-wheel":
                _point_pyopengl_at_wheel()
            return name
    asked = f"MUJOCO_GL={wanted} does not work here" if wanted else "no OpenGL library works here"
    raise RenderError(f"{asked}: {FIX}")


def _import_triton() -> None:
    """Load triton, where it is installed, before an OpenGL library does harm to it; CUDA builds of torch bring it."""
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")


def egl_works() -> bool:
    """Whether some EGL device can be initialised without a screen."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    address = egl.eglGetProcAddress
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    query, get_display = address(b"eglQueryDevicesEXT"), address(b"eglGetPlatformDisplayEXT")
    if not (query and get_display):
        return False
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    query_devices = ctypes.CFUNCTYPE(integer, integer, ctypes.POINTER(pointer), ctypes.POINTER(integer))(query)
    platform_display = ctypes.CFUNCTYPE(pointer, integer, pointer, pointer)(get_display)
    devices, found = (pointer * 16)(), integer()
    if not query_devices(16, devices, ctypes.byref(found)):
        return False
    egl.eglInitialize.argtypes = [pointer, pointer, pointer]
    egl.eglTerminate.argtypes = [pointer]
    for device in devices[: found.value]:
        display = platform_display(_EGL_PLATFORM_DEVICE, device, None)
        if display and egl.eglInitialize(display, None, None):
            egl.eglTerminate(display)
            return True
    return False


def osmesa_works() -> bool:
    """Whether the system has OSMesa, under one of the names PyOpenGL tries."""
    return any(_loads(name) for name in ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6"))


def osmesa_wheel_works() -> bool:
    """Whether the wheel `lavavu-osmesa` is installed and its OSMesa loads."""
    return load_osmesa_from_wheel() is not None


BACKENDS: dict[str, Callable[[], bool]] = {
    "egl": egl_works,
    "osmesa": osmesa_works,
    "osmesa-wheel": osmesa_wheel_works,
}


@functools.cache
def load_osmesa_from_wheel() -> ctypes.CDLL | None:
    """The OSMesa library that the wheel `lavavu-osmesa` brought; nothing else of the wheel is used."""
    folders = (Path(folder, "lavavu_osmesa.libs") for folder in sys.path)
    waiting = [library for folder in folders for library in sorted(folder.glob("*.so*"))]
    # The libraries need each other and do not know where they lie: load whichever can be, until none is left.
    while waiting:
        left = [library for library in waiting if not _loads(str(library))]
        for library in waiting:
            if library not in left and library.name.startswith("libOSMesa"):
                return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)  # global, so that MuJoCo finds it too
        if left == waiting:
            return None
        waiting = left
    return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _point_pyopengl_at_wheel() -> None:
    """PyOpenGL looks for OSMesa by its plain name only; its plugin table takes another loader."""
    from OpenGL.plugins import PlatformPlugin

    PlatformPlugin.by_name("osmesa").import_path = "ctrlformer.envs.osmesa_wheel.WheelPlatform"
