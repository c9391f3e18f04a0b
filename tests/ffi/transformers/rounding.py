"""How far apart two evaluations of the same experts, or of the same model, may be.

`bank_bound` is an a-priori bound, element by element, on the rounding error of one bank; nothing
in it was measured. `comparable` finds the positions of whole models that can be compared at all:
a token whose router was undecided within rounding goes to other experts, and so do its followers.
"""
import copy

import torch

# unit roundoff: half the distance from 1 to the next number
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SILU_SLOPE = 1.0999  # the largest derivative of silu, at x = 2.3994


def bank_exact(module, x, ids, weights):
    """A SwiGLU bank in float64, and what bounds the error of any evaluation in `x.dtype` whose
    products are accumulated in float32: each operation adds its unit roundoff times its result,
    each sum of n products (n + 1) float32 roundoffs times the sum of their magnitudes, and the
    errors of operands come through multiplied by the other operand."""
    x, weights = x.detach(), weights.detach()
    unit, single = UNIT[x.dtype], UNIT[torch.float32]
    gate_up, down = module.gate_up_proj.detach().double(), module.down_proj.detach().double()
    half = gate_up.shape[1] // 2
    hidden, inner = gate_up.shape[2], half
    x, weights = x.double(), weights.double()
    y, bound, magnitude = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for token in range(len(x)):
        for choice in range(ids.shape[1]):
            expert, weight = ids[token, choice], weights[token, choice].abs()
            row = gate_up[expert] @ x[token]
            error = ((hidden + 1) * single * (gate_up[expert].abs() @ x[token].abs())
                     + unit * row.abs())
            gate, up, d_gate, d_up = row[:half], row[half:], error[:half], error[half:]
            silu = torch.nn.functional.silu(gate)
            d_silu = SILU_SLOPE * d_gate + (unit + 4 * single) * silu.abs()
            h = silu * up
            d_h = d_silu * (up.abs() + d_up) + silu.abs() * d_up + unit * h.abs()
            out = down[expert] @ h
            d_out = (down[expert].abs() @ (d_h + (inner + 1) * single * h.abs())
                     + unit * out.abs())
            y[token] += weights[token, choice] * out
            magnitude[token] += weight * out.abs()
            bound[token] += weight * (d_out + unit * out.abs())
    return y, bound + (ids.shape[1] + 1) * unit * magnitude


class Routes:
    """Records which experts every bank of a model is called with."""

    def __init__(self, model, names):
        self.ids = []
        self._hooks = [model.get_submodule(name).register_forward_pre_hook(
            lambda module, args: self.ids.append(args[1].sort(dim=1).values.clone()))
            for name in names]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()


def bank_names(model):
    return [name for name, _ in model.named_modules() if name.endswith(".experts")]


def routed_logits(model, ids):
    """Logits, and for every position the experts it was routed to, in all layers."""
    with Routes(model, bank_names(model)) as routes, torch.no_grad():
        logits = model(ids, use_cache=False).logits
    return logits.double(), torch.cat(routes.ids, dim=1).view(*ids.shape, -1)


def exact_model(model):
    """The same weights, evaluated in float64 by the model's own code."""
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    return exact


def comparable(*routes):
    """[rows, columns]: True where all went the same way up to there; attention is causal."""
    same = torch.ones(routes[0].shape[:2], dtype=torch.bool)
    for each in routes[1:]:
        same &= (each == routes[0]).all(dim=-1)
    return same.int().cumprod(dim=1).bool()
