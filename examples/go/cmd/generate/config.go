package main

import (
	"encoding/json"
	"fmt"

	"moepage"
)

// config is what a decoder has to know of a Qwen3-MoE model.
type config struct {
	Architecture string
	Layers       int     `json:"num_hidden_layers"`
	Hidden       int     `json:"hidden_size"`
	Heads        int     `json:"num_attention_heads"`
	KVHeads      int     `json:"num_key_value_heads"`
	HeadDim      int     `json:"head_dim"`
	Vocabulary   int     `json:"vocab_size"`
	Experts      int     `json:"num_experts"`
	TopK         int     `json:"num_experts_per_tok"`
	Normalise    bool    `json:"norm_topk_prob"`
	NormEps      float32 `json:"rms_norm_eps"`
	RopeTheta    float64 `json:"rope_theta"`
	MaxPositions int     `json:"max_position_embeddings"`
	EOS          int     `json:"eos_token_id"`
	Tied         bool    `json:"tie_word_embeddings"`
	Bias         bool    `json:"attention_bias"`
	Sliding      bool    `json:"use_sliding_window"`
	Scaling      any     `json:"rope_scaling"`
	Activation   string  `json:"hidden_act"`
}

func readConfig(model *moepage.Model) (*config, error) {
	text, err := model.ConfigJSON()
	if err != nil {
		return nil, err
	}
	info, err := model.Info()
	if err != nil {
		return nil, err
	}
	c := &config{Architecture: info.Architecture, NormEps: 1e-6, RopeTheta: 1e4, EOS: -1, Activation: "silu"}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	return c, c.check(&info)
}

// check refuses what this example does not compute.
func (c *config) check(info *moepage.ModelInfo) error {
	if c.Architecture != "qwen3_moe" || info.MoELayers != info.Layers || !info.FFNSupported {
		return fmt.Errorf("%s: this example runs qwen3_moe models whose layers all have experts", c.Architecture)
	}
	if c.Bias || c.Sliding || c.Scaling != nil || c.Activation != "silu" || c.Tied {
		return fmt.Errorf("config.json: this example has no attention bias, sliding window, RoPE scaling, " +
			"tied embeddings or activation other than silu")
	}
	if c.Heads < 1 || c.KVHeads < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim < 2 || c.HeadDim%2 != 0 {
		return fmt.Errorf("config.json: %d heads of %d with %d KV heads cannot be", c.Heads, c.HeadDim, c.KVHeads)
	}
	if c.Vocabulary < 256 || c.TopK != int(info.TopK) || c.Experts != int(info.Experts) {
		return fmt.Errorf("config.json: this example runs byte-level models: a vocabulary of 256 or more")
	}
	return nil
}

// kvWidth is the numbers of a token's keys in one layer, and of its values.
func (c *config) kvWidth() int { return c.KVHeads * c.HeadDim }
