//! What config.json says of a Qwen3-MoE model beside what the library knows.
use moepage::Model;

pub struct Config {
    pub layers: usize,
    pub hidden: usize,
    pub experts: usize,
    pub top_k: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub max_positions: u32,
    pub norm_eps: f32,
    pub rope_theta: f64,
    pub normalise_top_k: bool,
    eos: Option<u32>,
}

impl Config {
    pub fn read(model: &Model) -> crate::Result<Self> {
        let info = model.info()?;
        let json = model.config_json().unwrap_or("");
        let plain = value(json, "rope_scaling").map_or(true, |scaling| scaling == "null");
        if info.architecture != "qwen3_moe" || info.moe_layers != info.layers || !plain {
            let name = info.architecture;
            return Err(format!("{name}: this example runs plain qwen3_moe models").into());
        }
        let count = |key: &str| -> crate::Result<usize> {
            let number = value(json, key).and_then(|text| text.parse().ok());
            number.ok_or_else(|| format!("config.json: {key} is missing or no count").into())
        };
        let number = |key: &str, otherwise| {
            value(json, key).and_then(|v| v.parse().ok()).unwrap_or(otherwise)
        };
        let config = Config {
            layers: info.layers as usize,
            hidden: info.hidden as usize,
            experts: info.experts as usize,
            top_k: info.top_k as usize,
            heads: count("num_attention_heads")?,
            kv_heads: count("num_key_value_heads")?,
            head_dim: count("head_dim")?,
            vocabulary: info.vocabulary as usize,
            max_positions: count("max_position_embeddings")? as u32,
            norm_eps: number("rms_norm_eps", 1e-6) as f32,
            rope_theta: number("rope_theta", 1e4),
            normalise_top_k: value(json, "norm_topk_prob") == Some("true"),
            eos: value(json, "eos_token_id").and_then(|text| text.parse().ok()),
        };
        if config.kv_heads == 0 || config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0 {
            return Err("config.json: the attention heads do not go together".into());
        }
        Ok(config)
    }

    pub fn ends(&self, token: u32) -> bool {
        self.eos == Some(token)
    }

    /// Keys and values of one layer.
    pub fn kv_bytes_per_token(&self) -> u32 {
        (2 * self.kv_heads * self.head_dim * std::mem::size_of::<f32>()) as u32
    }
}

/// The plain value behind a key. The library has parsed the text: it is an object.
fn value<'j>(json: &'j str, key: &str) -> Option<&'j str> {
    let quoted = format!("\"{key}\"");
    let behind = &json[json.find(&quoted)? + quoted.len()..];
    let behind = behind.trim_start().strip_prefix(':')?.trim_start();
    Some(behind.split([',', '}', ']', '\n']).next()?.trim())
}
