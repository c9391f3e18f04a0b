//! The tensors that are never paged, by their names in the checkpoint.
use moepage::{Bf16, Model};

use crate::config::Config;
use crate::math::Matrix;
use crate::Result;

pub struct Layer<'m> {
    pub input_norm: &'m [Bf16],
    pub q: Matrix<'m>,
    pub k: Matrix<'m>,
    pub v: Matrix<'m>,
    pub o: Matrix<'m>,
    pub q_norm: &'m [Bf16],
    pub k_norm: &'m [Bf16],
    pub post_norm: &'m [Bf16],
    pub router: Matrix<'m>,
}

pub struct Weights<'m> {
    pub embedding: Matrix<'m>,
    pub layers: Vec<Layer<'m>>,
    pub final_norm: &'m [Bf16],
    pub head: Matrix<'m>,
}

impl<'m> Weights<'m> {
    pub fn find(model: &'m Model, config: &Config) -> Result<Self> {
        let hidden = config.hidden;
        Ok(Weights {
            embedding: matrix(model, "model.embed_tokens.weight", config.vocabulary, hidden)?,
            layers: (0..config.layers)
                .map(|index| layer(model, config, index))
                .collect::<Result<_>>()?,
            final_norm: vector(model, "model.norm.weight", hidden)?,
            head: matrix(model, "lm_head.weight", config.vocabulary, hidden)?,
        })
    }
}

fn layer<'m>(model: &'m Model, config: &Config, index: usize) -> Result<Layer<'m>> {
    let (hidden, head) = (config.hidden, config.head_dim);
    let (q, kv) = (config.heads * head, config.kv_heads * head);
    let named = |name: &str| format!("model.layers.{index}.{name}.weight");
    Ok(Layer {
        input_norm: vector(model, &named("input_layernorm"), hidden)?,
        q: matrix(model, &named("self_attn.q_proj"), q, hidden)?,
        k: matrix(model, &named("self_attn.k_proj"), kv, hidden)?,
        v: matrix(model, &named("self_attn.v_proj"), kv, hidden)?,
        o: matrix(model, &named("self_attn.o_proj"), hidden, q)?,
        q_norm: vector(model, &named("self_attn.q_norm"), head)?,
        k_norm: vector(model, &named("self_attn.k_norm"), head)?,
        post_norm: vector(model, &named("post_attention_layernorm"), hidden)?,
        router: matrix(model, &named("mlp.gate"), config.experts, hidden)?,
    })
}

fn values<'m>(model: &'m Model, name: &str, shape: &[u64]) -> Result<&'m [Bf16]> {
    let tensor = model.find_tensor(name)?;
    if tensor.shape() != shape {
        return Err(format!("{name} is {:?}, not {shape:?}", tensor.shape()).into());
    }
    Ok(tensor.elements()?)
}

fn vector<'m>(model: &'m Model, name: &str, width: usize) -> Result<&'m [Bf16]> {
    values(model, name, &[width as u64])
}

fn matrix<'m>(model: &'m Model, name: &str, rows: usize, columns: usize) -> Result<Matrix<'m>> {
    let values = values(model, name, &[rows as u64, columns as u64])?;
    Ok(Matrix { columns, values })
}
