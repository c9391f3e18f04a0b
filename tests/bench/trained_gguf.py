"""The trained model of this repository as a GGUF file, as it is or widened. Needs gguf and numpy.

Of rows of 128 and 64 llama.cpp makes no k-quants, which have super-blocks of 256. The widened copy computes the same
function. Every hidden element is there twice, every head twice, every neuron of an expert four times; what reads
them has its weights halved or quartered, which is exact in BF16.
"""
import json
import os

import gguf
import numpy


# ---- The checkpoint, and its widened copy ----------------------------------------------------------------------------

def read_checkpoint(path):
    """The config, and every tensor as floats: BF16 in the files."""
    tensors = {}
    for name in sorted(os.listdir(path)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(path, name), "rb") as file:
            raw = file.read()
        n = int.from_bytes(raw[:8], "little")
        for key, of in json.loads(raw[8:8 + n]).items():
            if key != "__metadata__":
                assert of["dtype"] == "BF16", key
                first, last = of["data_offsets"]
                bits = numpy.frombuffer(raw[8 + n + first:8 + n + last], dtype="<u2").astype("<u4") << 16
                tensors[key] = bits.view("<f4").reshape(of["shape"])
    with open(os.path.join(path, "config.json")) as file:
        return json.load(file), tensors


def widen(config, tensors):
    """Twice the hidden size and the heads, four times the experts' neurons; the same function."""
    twice_in = lambda w: numpy.concatenate([w, w], axis=-1) / 2
    twice_out = lambda w: numpy.concatenate([w, w], axis=0)
    out = {}
    for name, w in tensors.items():
        part = name.split(".")[-2]
        if part in ("q_norm", "k_norm"):
            out[name] = w
        elif part in ("input_layernorm", "post_attention_layernorm", "norm"):
            out[name] = twice_out(w)
        elif part == "embed_tokens":
            out[name] = numpy.concatenate([w, w], axis=1)
        elif part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[name] = twice_out(twice_in(w))
        elif part in ("gate_proj", "up_proj"):
            out[name] = numpy.concatenate([twice_in(w)] * 4, axis=0)
        elif part == "down_proj":
            out[name] = twice_out(numpy.concatenate([w] * 4, axis=1) / 4)
        else:
            assert part in ("gate", "lm_head"), name
            out[name] = twice_in(w)
    sizes = {"hidden_size": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 4,
             "intermediate_size": 4}
    return {key: value * sizes.get(key, 1) if key in sizes else value for key, value in config.items()}, out


# ---- GGUF files ------------------------------------------------------------------------------------------------------

def add_byte_tokens(writer, config):
    """Tokens that are bytes, in the spelling of byte-level BPE: printable ones stand for themselves, the others for
    characters from 256 on. One merge, which the format wants, is of bytes that no text has."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    tokens = [chr(byte if byte in printable else next(rest)) for byte in range(256)]
    special = ["<|%d|>" % token for token in range(256, config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens + special)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(special))
    writer.add_token_merges([tokens[0] + " " + tokens[1]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def write_gguf(path, config, tensors, byte_tokens=False):
    """A model without a vocabulary, unless its tokens are to be bytes for llama.cpp too."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    if byte_tokens:
        add_byte_tokens(writer, config)
    else:
        writer.add_tokenizer_model("none")

    def matrix(name, w):
        bits = (numpy.ascontiguousarray(w, dtype="<f4").view("<u4") >> 16).astype("<u2")
        assert ((bits.astype("<u4") << 16).view("<f4") == w).all(), name
        writer.add_tensor(name, bits.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def floats(name, w):
        writer.add_tensor(name, numpy.ascontiguousarray(w, dtype="<f4"))

    matrix("token_embd.weight", tensors["model.embed_tokens.weight"])
    matrix("output.weight", tensors["lm_head.weight"])
    floats("output_norm.weight", tensors["model.norm.weight"])
    for layer in range(config["num_hidden_layers"]):
        of, to = "model.layers.%d." % layer, "blk.%d." % layer
        floats(to + "attn_norm.weight", tensors[of + "input_layernorm.weight"])
        floats(to + "ffn_norm.weight", tensors[of + "post_attention_layernorm.weight"])
        floats(to + "attn_q_norm.weight", tensors[of + "self_attn.q_norm.weight"])
        floats(to + "attn_k_norm.weight", tensors[of + "self_attn.k_norm.weight"])
        for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            matrix(to + "attn_%s.weight" % theirs, tensors[of + "self_attn.%s_proj.weight" % ours])
        floats(to + "ffn_gate_inp.weight", tensors[of + "mlp.gate.weight"])
        for part in ("gate", "up", "down"):
            matrix(to + "ffn_%s_exps.weight" % part,
                   numpy.stack([tensors[of + "mlp.experts.%d.%s_proj.weight" % (e, part)]
                                for e in range(config["num_experts"])]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
