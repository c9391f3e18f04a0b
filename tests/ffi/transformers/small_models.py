"""Small random-weight models of every architecture that can be paged, and tokens for them."""
import copy

import torch
import transformers

VOCABULARY = 96
_COMMON = dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0,
               bos_token_id=1, eos_token_id=None, tie_word_embeddings=False)
_DEEPSEEK = dict(_COMMON, num_key_value_heads=4, intermediate_size=64, moe_intermediate_size=32,
                 n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1,
                 first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=16,
                 qk_rope_head_dim=8, v_head_dim=16, n_group=4, topk_group=2)

# architecture: (config class, model class, what the config is made of)
ARCHITECTURES = {
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
                  dict(_COMMON, head_dim=16, intermediate_size=64, moe_intermediate_size=32,
                       num_experts=16, num_experts_per_tok=4, norm_topk_prob=True)),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM",
                  dict(_COMMON, intermediate_size=64, moe_intermediate_size=32,
                       shared_expert_intermediate_size=40, num_experts=16,
                       num_experts_per_tok=4)),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM",
                dict(_COMMON, intermediate_size=40, num_local_experts=8,
                     num_experts_per_tok=2)),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM",
              dict(_COMMON, intermediate_size=32, num_experts=16, num_experts_per_tok=4)),
    "phimoe": ("PhimoeConfig", "PhimoeForCausalLM",
               dict(_COMMON, intermediate_size=40, num_local_experts=8, num_experts_per_tok=2)),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM",
                    dict(_DEEPSEEK, topk_method="group_limited_greedy",
                         routed_scaling_factor=1.0)),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM",
                    dict(_DEEPSEEK, norm_topk_prob=True, routed_scaling_factor=2.5)),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM",
                dict(_COMMON, head_dim=16, intermediate_size=40, num_local_experts=8,
                     num_experts_per_tok=2, sliding_window=16,
                     layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
}


def build(architecture, dtype=torch.float32, experts="grouped_mm", seed=7):
    """A model in evaluation mode. Its weights are large enough that experts and routing matter:
    freshly initialised ones give logits which hardly depend on either."""
    config_name, model_name, values = ARCHITECTURES[architecture]
    config = getattr(transformers, config_name)(**copy.deepcopy(values))
    config._experts_implementation = experts
    model = getattr(transformers, model_name)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
            elif "bias" in name or "sinks" in name:
                parameter.normal_(0, 0.1, generator=generator)
    return model.to(dtype).eval()


def tokens(rows, columns, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (rows, columns), generator=generator)


def padded(lengths, seed=3):
    """Token ids padded on the left, and their attention mask."""
    ids = tokens(len(lengths), max(lengths), seed)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        mask[row, : max(lengths) - length] = 0
    return ids.masked_fill(mask == 0, 0), mask


def banks(model):
    """The expert modules of a model that is not paged, in layer order."""
    return [module for module in model.modules()
            if isinstance(getattr(module, "gate_up_proj", None), torch.nn.Parameter)
            and module.gate_up_proj.dim() == 3]


def logits(model, ids, mask=None):
    """Of every position, without gradients."""
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits


def greedy(model, ids, n=12, mask=None):
    """The continuation of every row, as generate() makes it."""
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)
    return out[:, ids.shape[1]:]


class OneThread:
    """A mixin: torch on one thread, since many small products on few busy cores stand still
    waiting for each other, and no gradients."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.set_num_threads(1)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
