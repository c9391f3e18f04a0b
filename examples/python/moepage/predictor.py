"""`Predictor`: learns which experts come next."""
import ctypes
import os
from typing import Any, Union

from . import _abi
from ._info import PredictorInfo, Rightsize
from .handles import Handle, State, created, library_of
from .model import Model
from .structs import make, report
from .units import text


def predictor_config(name: str = "maps", *, distance: int = 0, capacity: int = 0,
                     semantic_dim: int = 0) -> Any:
    """moepage_predictor_config."""
    return make(_abi.moepage_predictor_config, name=text(name, "name"), distance=distance,
                capacity=capacity, semantic_dim=semantic_dim)


class Predictor(Handle):
    """For sessions with prefetch="predictor", which may share it.

    `name` is "none", "previous", "hit-count", "gate", "coactivation" or "maps"; `distance` layers
    ahead (0 = 3); `capacity` of "maps" in iterations (0 = 1024); `semantic_dim` of the embeddings
    that steps will bring. Any thread may use it. Closing it is Busy while a session
    does, or a controller that sizes its user.
    """

    def __init__(self, model: Model, name: str = "maps", *, distance: int = 0, capacity: int = 0,
                 semantic_dim: int = 0) -> None:
        lib = library_of(model)
        config = predictor_config(name, distance=distance, capacity=capacity,
                                  semantic_dim=semantic_dim)
        with model._state as raw:
            made = created(lib.moepage_predictor_create, lib.moepage_predictor_destroy, raw,
                           ctypes.byref(config))
        self._own(State("predictor", lib, lib.moepage_predictor_destroy, made))

    @property
    def info(self) -> PredictorInfo:
        """What it has learnt from, now."""
        with self._state as raw:
            return report(self._state.library.moepage_predictor_get_info, PredictorInfo, raw)

    def save(self, path: "Union[str, os.PathLike[str]]") -> None:
        """Writes what it has learnt to a file."""
        with self._state as raw:
            self._state.library.moepage_predictor_save(raw, os.fsencode(path))

    def load(self, path: "Union[str, os.PathLike[str]]") -> None:
        """Takes over what one of the same name and shape saved."""
        with self._state as raw:
            self._state.library.moepage_predictor_load(raw, os.fsencode(path))

    def rightsize(self, coverage: float = 0.0) -> Rightsize:
        """The smallest set of experts that covers a part of the routed choices (0 = 0.99); of
        "coactivation" alone."""
        struct = make(_abi.moepage_rightsize, coverage=coverage)
        with self._state as raw:
            self._state.library.moepage_predictor_rightsize(raw, ctypes.byref(struct))
        return Rightsize.of(struct)
