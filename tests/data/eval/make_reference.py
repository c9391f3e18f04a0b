"""Writes reference.json: bits per byte of the trained model's texts, as transformers evaluates them.

    python3 tests/data/eval/make_reference.py      (from the project's root)

Windows of 256 bytes, each from an empty context, bytes 1..255 scored: the first two of each text.
Beside the stored weights the same with every expert's matrices rounded to integers, groups of 64
columns, as docs/format-moepack.md defines them; with only some of a token's choices; and with one of
them replaced by the next best expert. Nothing of libmoepage runs here."""

import json
import math
import pathlib

import torch
import transformers
from transformers.models.qwen3_moe import modeling_qwen3_moe

MODEL = "examples/models/tiny-qwen3moe"
WINDOW, WINDOWS, GROUP = 256, 2, 64


def matrices(model):
    """Every expert's matrices, rows of what they are multiplied with."""
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            yield parameter


def covering_scale(groups, reach):
    """The smallest half that covers each group's largest magnitude."""
    largest = groups.abs().amax(dim=-1, keepdim=True).double()
    half = (largest / reach).to(torch.float16)
    above = (half.view(torch.int16) + 1).view(torch.float16)
    return torch.where(half.double() * reach < largest, above, half).float()


def round_to_integers(weights, bits):
    """Of two bits, a group has three levels or four: those with the lower squared error."""
    most = 2 ** (bits - 1) - 1
    groups = weights.reshape(*weights.shape[:-1], -1, GROUP)
    scale = covering_scale(groups, most)
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = torch.clamp(torch.round(groups / divisor), -most, most) * scale
    if bits == 2:
        scale = covering_scale(groups, 2)
        divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
        four = (torch.clamp(torch.floor(groups / divisor), -2, 1) + 0.5) * scale
        errors = [((v - groups).double() ** 2).sum(dim=-1, keepdim=True) for v in (values, four)]
        values = torch.where(errors[1] < errors[0], four, values)
    return values.reshape(weights.shape)


def bits_per_byte(model, text):
    windows = torch.tensor(list(text[: WINDOW * WINDOWS])).reshape(WINDOWS, WINDOW)
    with torch.no_grad():
        logits = model(input_ids=windows).logits.double()
    log_p = torch.log_softmax(logits[:, :-1], dim=-1)
    chosen = log_p.gather(-1, windows[:, 1:, None])
    return -chosen.mean().item() / math.log(2)


def ablate(model, keep, deny):
    """Routers that keep the first `keep` choices, or replace the one of rank `deny`."""
    for layer in model.model.layers:
        gate = layer.mlp.gate

        def forward(hidden, gate=gate):
            logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
            p = torch.softmax(logits.float(), dim=-1)
            k = gate.top_k
            value, index = torch.topk(p, k + 1, dim=-1)
            if deny:
                ranks = [r for r in range(k + 1) if r != deny - 1]
            else:
                ranks = list(range(k))
            value, index = value[:, ranks].clone(), index[:, ranks]
            if keep:
                value[:, keep:] = 0
            return logits, value / value.sum(dim=-1, keepdim=True), index

        gate.forward = forward


def all_experts(self, hidden, index, weights):
    """What the chosen experts add up to, by computing all of them: the loop that this stands for takes
    minutes."""
    share = torch.zeros(hidden.shape[0], self.num_experts).scatter_add_(1, index, weights.float())
    gate, up = torch.einsum("th,eoh->teo", hidden, self.gate_up_proj).chunk(2, dim=-1)
    inner = torch.nn.functional.silu(gate) * up * share[:, :, None]
    return torch.einsum("tei,ehi->th", inner, self.down_proj)


def load():
    return transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def main():
    torch.set_num_threads(2)
    modeling_qwen3_moe.Qwen3MoeExperts.forward = all_experts
    texts = {path.stem: path.read_bytes() for path in sorted(pathlib.Path(MODEL, "eval").glob("*.bin"))}
    settings = {"exact": {}, "int8": {"bits": 8}, "int4": {"bits": 4}, "int2": {"bits": 2},
                "ranks 1 to 4": {"keep": 4}, "without rank 1": {"deny": 1}}
    result = {}
    for name, how in settings.items():
        model = load()
        if "bits" in how:
            with torch.no_grad():
                for weights in matrices(model):
                    weights.copy_(round_to_integers(weights, how["bits"]))
        if "keep" in how or "deny" in how:
            ablate(model, how.get("keep"), how.get("deny"))
        result[name] = {key: round(bits_per_byte(model, text), 6) for key, text in texts.items()}
        print(name, result[name])
    path = pathlib.Path(__file__).with_name("reference.json")
    path.write_text(json.dumps({"window": WINDOW, "windows": WINDOWS, "bits_per_byte": result},
                               indent=1) + "\n")


main()
