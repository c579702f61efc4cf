"""The exceptions that users can meet, in one family.

Every message is a single line that names the thing and the fix: the command line prints it and exits
with code 2, so nobody has to read a traceback for a mistyped task.
"""


class CtrlFormerError(Exception):
    """Something the user can fix. `except ctrlformer.CtrlFormerError` catches every kind."""


class ConfigError(CtrlFormerError):
    """A setting, or a combination of settings, that cannot work."""


class TaskError(CtrlFormerError):
    """A task that does not exist, cannot be shown as pixels, or fails while it is played."""


class RenderError(CtrlFormerError):
    """No usable OpenGL on this machine, or one that fails while pictures are drawn."""


class RunError(CtrlFormerError):
    """A run folder that is missing, foreign, locked or cannot be written."""


class CheckpointError(CtrlFormerError):
    """A checkpoint or replay file that is damaged or does not fit."""


class NonFiniteError(CtrlFormerError):
    """A NaN or infinity in a reward, pixel, loss or gradient: training stops before it spreads."""
