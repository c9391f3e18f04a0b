//! The step loop: attention and routers are here, the routed experts are the library's.
use moepage::{
    KvLayer, KvPool, KvTable, Model, Phase, Routing, Sequence, Session, StepInput, StepSequence,
};

use crate::config::Config;
use crate::math::{self, Rope};
use crate::weights::{Layer, Weights};
use crate::Result;

pub struct Decoder<'m> {
    config: &'m Config,
    weights: Weights<'m>,
    kv: &'m KvPool<'m>,
    rope: Rope,
    logits: Vec<f32>,
}

impl<'m> Decoder<'m> {
    pub fn open(model: &'m Model, config: &'m Config, kv: &'m KvPool<'m>) -> Result<Self> {
        Ok(Decoder {
            config,
            weights: Weights::find(model, config)?,
            kv,
            rope: Rope::new(config.head_dim, config.rope_theta),
            logits: vec![0.0; config.vocabulary],
        })
    }

    pub fn config(&self) -> &Config {
        self.config
    }

    /// Feeds a part of a prompt, for which `sequence` has room; the logits after it.
    pub fn prefill(
        &mut self,
        session: &mut Session<'_>,
        sequence: &Sequence<'_>,
        tokens: &[u32],
    ) -> Result<&[f32]> {
        self.step(session, sequence, tokens, Phase::Prefill)
    }

    /// Feeds one token; the logits after it.
    pub fn decode(
        &mut self,
        session: &mut Session<'_>,
        sequence: &Sequence<'_>,
        token: u32,
    ) -> Result<&[f32]> {
        self.step(session, sequence, &[token], Phase::Decode)
    }

    fn step(
        &mut self,
        session: &mut Session<'_>,
        sequence: &Sequence<'_>,
        tokens: &[u32],
        phase: Phase,
    ) -> Result<&[f32]> {
        let mut hidden = self.embed(tokens)?;
        let n_tokens = tokens.len() as u32;
        let part = [StepSequence { sequence: Some(sequence), n_tokens, phase }];
        let step = session.begin(&StepInput::sequences(&part))?;
        let table = step.kv_table(sequence)?;
        let mut added = vec![0.0; hidden.len()];
        for (index, weights) in self.weights.layers.iter().enumerate() {
            let blocks = Blocks::new(self.kv.layer(index as u32)?, table, self.config, self.kv);
            self.attend(weights, &blocks, &hidden, &mut added);
            math::add(&mut hidden, &added);

            let mut normed = hidden.clone();
            math::rms_norm(&mut normed, weights.post_norm, self.config.norm_eps);
            let (ids, top) = self.route(weights, &normed);
            let mut layer = step.route(index as u32, &Routing::new(&ids, &top))?;
            layer.ffn(&normed, &mut added)?;
            layer.retire()?;
            math::add(&mut hidden, &added);
        }
        step.end()?;

        let last = hidden.len() - self.config.hidden;
        math::rms_norm(&mut hidden[last..], self.weights.final_norm, self.config.norm_eps);
        self.weights.head.apply(&hidden[last..], &mut self.logits);
        Ok(&self.logits)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut hidden = Vec::with_capacity(tokens.len() * self.config.hidden);
        for &token in tokens {
            if token as usize >= self.config.vocabulary {
                return Err(format!("token {token}: there are {}", self.config.vocabulary).into());
            }
            let row = self.weights.embedding.row(token as usize);
            hidden.extend(row.iter().map(|&value| f32::from(value)));
        }
        Ok(hidden)
    }

    /// What attention adds to the rows of `hidden`, the last of the sequence.
    fn attend(&self, weights: &Layer<'_>, blocks: &Blocks<'_>, hidden: &[f32], out: &mut [f32]) {
        let c = self.config;
        let n = hidden.len() / c.hidden;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut normed = hidden.to_vec();
        math::rms_norm(&mut normed, weights.input_norm, c.norm_eps);
        let (mut q, mut k, mut v) =
            (vec![0.0; n * q_width], vec![0.0; n * kv_width], vec![0.0; n * kv_width]);
        weights.q.apply(&normed, &mut q);
        weights.k.apply(&normed, &mut k);
        weights.v.apply(&normed, &mut v);
        math::rms_norm(&mut q, weights.q_norm, c.norm_eps);
        math::rms_norm(&mut k, weights.k_norm, c.norm_eps);

        let first = blocks.n_tokens - n as u64;
        for (row, (k, v)) in k.chunks_exact_mut(kv_width).zip(v.chunks_exact(kv_width)).enumerate()
        {
            self.rope.turn(k, first + row as u64);
            blocks.store(first + row as u64, k, v);
        }
        let mut attended = vec![0.0; n * q_width];
        for (row, q) in q.chunks_exact_mut(q_width).enumerate() {
            self.rope.turn(q, first + row as u64);
            let out = &mut attended[row * q_width..][..q_width];
            attend_row(c, blocks, first + row as u64, q, out);
        }
        weights.o.apply(&attended, out);
    }

    /// Each token's experts and their weights.
    fn route(&self, weights: &Layer<'_>, normed: &[f32]) -> (Vec<i32>, Vec<f32>) {
        let c = self.config;
        let n = normed.len() / c.hidden;
        let mut scores = vec![0.0; n * c.experts];
        weights.router.apply(normed, &mut scores);
        let (mut ids, mut top) = (Vec::new(), Vec::new());
        for scores in scores.chunks_exact_mut(c.experts) {
            math::softmax(scores);
            let mut order: Vec<usize> = (0..c.experts).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            let chosen = &order[..c.top_k];
            let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
            let divisor = if c.normalise_top_k { sum } else { 1.0 };
            ids.extend(chosen.iter().map(|&expert| expert as i32));
            top.extend(chosen.iter().map(|&expert| scores[expert] / divisor));
        }
        (ids, top)
    }
}

/// One layer's keys and values of the sequence: in each block those of `block_tokens` positions,
/// keys first.
struct Blocks<'t> {
    layer: KvLayer<'t>,
    blocks: &'t [u32],
    n_tokens: u64,
    block_tokens: usize,
    width: usize,
}

impl<'t> Blocks<'t> {
    fn new(layer: KvLayer<'t>, table: KvTable<'t>, config: &Config, kv: &KvPool<'_>) -> Self {
        Blocks {
            layer,
            blocks: table.blocks,
            n_tokens: table.n_tokens,
            block_tokens: kv.block_tokens() as usize,
            width: config.kv_heads * config.head_dim,
        }
    }

    fn place(&self, position: u64) -> (u32, usize) {
        let position = position as usize;
        let block = self.blocks[position / self.block_tokens];
        (block, position % self.block_tokens * self.width)
    }

    fn store(&self, position: u64, key: &[f32], value: &[f32]) {
        let (block, at) = self.place(position);
        // SAFETY: the device is the host and the block is of an open step's table. The position was
        // appended for this step, so that its block is the sequence's own; slices of it do not
        // leave this function, or `pair`'s caller before the next `store`.
        let numbers = unsafe { self.layer.block_mut::<f32>(block) };
        numbers[at..][..self.width].copy_from_slice(key);
        numbers[at + self.block_tokens * self.width..][..self.width].copy_from_slice(value);
    }

    /// The key and the value of a position, of all heads.
    fn pair(&self, position: u64) -> (&[f32], &[f32]) {
        let (block, at) = self.place(position);
        // SAFETY: as in `store`, and nobody stores while a row is attended.
        let numbers = unsafe { self.layer.block::<f32>(block) };
        let value = at + self.block_tokens * self.width;
        (&numbers[at..][..self.width], &numbers[value..][..self.width])
    }
}

fn attend_row(config: &Config, blocks: &Blocks<'_>, position: u64, q: &[f32], out: &mut [f32]) {
    let dim = config.head_dim;
    let scale = 1.0 / (dim as f32).sqrt();
    let heads_per_kv = config.heads / config.kv_heads;
    for (head, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
        let at = head / heads_per_kv * dim;
        let score = |p| {
            let key = &blocks.pair(p).0[at..][..dim];
            q.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale
        };
        let mut scores: Vec<f32> = (0..=position).map(score).collect();
        math::softmax(&mut scores);
        for (p, score) in scores.iter().enumerate() {
            let value = &blocks.pair(p as u64).1[at..][..dim];
            out.iter_mut().zip(value).for_each(|(out, v)| *out += score * v);
        }
    }
}
