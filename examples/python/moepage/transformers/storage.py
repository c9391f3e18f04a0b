"""Where the experts' weights stay: the parameters' own memory, on the host.

On the CPU nothing is moved and nothing copied. Parameters of a CUDA device are moved to the host,
since what is paged must not fill the device; `give_back` moves them to where they were.
"""
from __future__ import annotations

from typing import List, Sequence

import torch

from .. import errors
from .recognise import Bank, Layout


class Storage:
    """The weights of all banks, kept alive and in place."""

    def __init__(self, banks: Sequence[Bank], layout: Layout) -> None:
        self._device = layout.device
        self._names, self._modules = [part.name for part in layout.parts], [b.module for b in banks]
        self._parameters = [[getattr(module, name) for name in self._names]
                            for module in self._modules]
        try:
            self._move(torch.device("cpu"))
        except BaseException:
            self.give_back()
            raise
        #: [layer][part]: fused tensors. They hold the memory, whatever happens to a parameter.
        self.weights: List[List[torch.Tensor]] = [
            [parameter.detach() for parameter in bank] for bank in self._parameters]
        self._addresses = [[fused.data_ptr() for fused in bank] for bank in self.weights]
        self._versions = [[_version(fused) for fused in bank] for bank in self.weights]

    def check(self, layer: int) -> None:
        """Raises if a parameter has been written or exchanged since: slots hold copies."""
        for name, parameter, address, version in zip(self._names, self._parameters[layer],
                                                     self._addresses[layer],
                                                     self._versions[layer]):
            if (getattr(self._modules[layer], name, None) is not parameter
                    or parameter.data_ptr() != address
                    or _version(parameter) != version):
                raise errors.StateError("expert weights of MoE layer %d were changed after paging, "
                                        "and the device holds copies of the old ones: restore() "
                                        "the model, and page it again" % layer)

    def give_back(self) -> None:
        """Puts the parameters where they were."""
        self._move(self._device)

    def _move(self, device: torch.device) -> None:
        for bank in self._parameters:
            for parameter in bank:
                if parameter.device != device:
                    parameter.data = parameter.data.to(device)


def _version(tensor: torch.Tensor) -> int:
    """Counts writes; tensors made in inference mode have no such counter."""
    return 0 if tensor.is_inference() else tensor._version
