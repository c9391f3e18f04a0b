"""Finds the expert banks of a loaded model, and what they look like.

A bank is the module that holds all routed experts of one layer in fused parameters. Where it is
missing, unknown, or not laid out as its architecture's is, `Unsupported` says so: nothing is ever
left unpaged in silence.
"""
from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

import torch
from torch import nn
from transformers.integrations import moe as hf_moe

from .. import _abi, errors

#: Architectures whose banks are called as experts(hidden [n, H], ids [n, k], weights [n, k]).
ARCHITECTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "phimoe", "deepseek_v2",
                 "deepseek_v3", "gpt_oss")
DTYPES = {torch.float32: _abi.MOEPAGE_DTYPE_F32, torch.float16: _abi.MOEPAGE_DTYPE_F16,
          torch.bfloat16: _abi.MOEPAGE_DTYPE_BF16}
_ROLES = {"gate_up_proj": _abi.MOEPAGE_ROLE_GATE_UP, "down_proj": _abi.MOEPAGE_ROLE_DOWN,
          "gate_up_proj_bias": _abi.MOEPAGE_ROLE_GATE_UP_BIAS,
          "down_proj_bias": _abi.MOEPAGE_ROLE_DOWN_BIAS}


class Bank(NamedTuple):
    """One layer's experts and where they hang."""
    name: str  #: "model.layers.0.mlp.experts"
    module: nn.Module
    parent: nn.Module
    attribute: str


class Part(NamedTuple):
    """One tensor of every expert."""
    name: str  #: of the fused parameter
    role: int
    shape: Tuple[int, ...]


class Layout(NamedTuple):
    """What all banks of a model have in common."""
    architecture: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    dtype: torch.dtype
    device: torch.device
    parts: Tuple[Part, ...]
    transposed: bool  #: x @ W instead of x @ W.T
    swiglu: bool  #: silu(gate) * up over [2I, H] and [H, I], no biases: the library can compute it


def find(model: nn.Module) -> Tuple[List[Bank], Layout]:
    """The model's banks in layer order, and their layout."""
    banks = _candidates(model)
    if not banks:
        raise errors.Unsupported(
            "%s has no expert banks: modules with fused gate_up_proj and down_proj parameters, as "
            "transformers 5 makes them for %s"
            % (type(model).__name__, ", ".join(ARCHITECTURES)))
    layouts = [_layout(bank) for bank in banks]
    for bank, layout in zip(banks, layouts):
        if layout != layouts[0]:
            raise errors.Unsupported(
                "%s and %s differ: all banks must have one architecture, shape, dtype and device"
                % (bank.name, banks[0].name))
    return banks, layouts[0]


def _candidates(model: nn.Module) -> List[Bank]:
    """Once each, also where a whole layer is used in several places."""
    banks: Dict[nn.Module, Bank] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not _looks_like_a_bank(name, module):
            continue
        path, _, attribute = name.rpartition(".")
        bank = Bank(name, module, model.get_submodule(path), attribute)
        first = banks.setdefault(module, bank)
        if (first.parent, first.attribute) != (bank.parent, bank.attribute):
            raise errors.Unsupported("%s and %s are one module: experts that layers share cannot "
                                     "be paged" % (first.name, name))
    return list(banks.values())


def _looks_like_a_bank(name: str, module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList):
        return name.rpartition(".")[2] == "experts"
    return bool(name) and (type(module).__name__.endswith("Experts")
                           or isinstance(getattr(module, "gate_up_proj", None), torch.Tensor)
                           and module.gate_up_proj.dim() == 3)


def _architecture(bank: Bank) -> str:
    kind = type(bank.module)
    path = kind.__module__.split(".")
    if (path[:2] == ["transformers", "models"] and path[2] in ARCHITECTURES
            and kind.__name__.endswith("Experts")):
        return path[2]
    if path[:2] == ["transformers", "integrations"]:
        raise errors.Unsupported(
            "%s is a %s.%s: quantised experts cannot be paged, load the model dequantised (of "
            "MXFP4: quantization_config=Mxfp4Config(dequantize=True))"
            % (bank.name, kind.__module__, kind.__name__))
    raise errors.Unsupported(
        "%s is a %s.%s, whose experts cannot be paged: known are those of transformers' %s"
        % (bank.name, kind.__module__, kind.__name__, ", ".join(ARCHITECTURES)))


def _layout(bank: Bank) -> Layout:
    architecture, module = _architecture(bank), bank.module
    has_bias, transposed = module.has_bias, module.is_transposed
    names = [name for name in _ROLES if has_bias or not name.endswith("_bias")]
    _check_names(bank, names)
    gate_up = module.gate_up_proj
    experts, *matrix = gate_up.shape
    hidden, two_i = matrix if transposed else reversed(matrix)
    shapes = {"gate_up_proj": (two_i, hidden), "down_proj": (hidden, two_i // 2),
              "gate_up_proj_bias": (two_i,), "down_proj_bias": (hidden,)}
    parts = []
    for name in names:
        shape = shapes[name][::-1] if transposed else shapes[name]
        _check_parameter(bank, name, (experts, *shape))
        parts.append(Part(name, _ROLES[name], shape))
    return Layout(architecture, experts, module.config.num_experts_per_tok, hidden, two_i // 2,
                  gate_up.dtype, gate_up.device, tuple(parts), transposed, _is_swiglu(module))


def _check_names(bank: Bank, names: List[str]) -> None:
    have = [name for name, _ in bank.module.named_parameters()]
    if sorted(have) != sorted(names):
        raise errors.Unsupported("%s has the parameters %s, expected are %s: quantised or adapted "
                                 "experts cannot be paged" % (bank.name, have, names))
    if bank.module._is_expert_parallel or bank.module.has_post_expert_norm:
        raise errors.Unsupported("%s: expert parallelism and norms behind experts cannot be paged"
                                 % bank.name)
    if (hasattr(bank.module, "_hf_hook") or bank.module._forward_hooks
            or bank.module._forward_pre_hooks or "forward" in vars(bank.module)):
        raise errors.Unsupported("%s has hooks or a forward of its own (device_map, "
                                 "offloading): load the model without, "
                                 "paging takes their place" % bank.name)


def _check_parameter(bank: Bank, name: str, shape: Tuple[int, ...]) -> None:
    parameter, first = getattr(bank.module, name), bank.module.gate_up_proj
    if tuple(parameter.shape) != shape:
        raise errors.Unsupported("%s.%s is %s, expected %s"
                                 % (bank.name, name, tuple(parameter.shape), shape))
    if parameter.dtype not in DTYPES or parameter.dtype != first.dtype:
        raise errors.Unsupported("%s.%s is %s: one of %s for all parameters can be paged"
                                 % (bank.name, name, parameter.dtype,
                                    ", ".join(str(each) for each in DTYPES)))
    if parameter.device.type not in ("cpu", "cuda") or parameter.device != first.device:
        raise errors.Unsupported("%s.%s is on %s: it must be on the CPU or a CUDA device, with the "
                                 "other parameters" % (bank.name, name, parameter.device))
    if not parameter.is_contiguous():
        raise errors.Unsupported("%s.%s is not contiguous" % (bank.name, name))


def _is_swiglu(module: nn.Module) -> bool:
    return (type(module)._apply_gate is hf_moe._default_apply_gate and module.is_concatenated
            and not module.is_transposed and not module.has_bias
            and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation"))
