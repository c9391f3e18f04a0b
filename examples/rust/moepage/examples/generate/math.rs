//! The arithmetic around the experts, in FP32.
use moepage::Bf16;

/// Sums in a fixed order, of as many terms at once as vector units like.
const LANES: usize = 16;

/// A weight `[rows][columns]` as it lies in the checkpoint.
#[derive(Clone, Copy)]
pub struct Matrix<'m> {
    pub columns: usize,
    pub values: &'m [Bf16],
}

impl Matrix<'_> {
    pub fn row(&self, row: usize) -> &[Bf16] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// y = W x, of every row of x.
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        let rows = self.values.len() / self.columns;
        for (x, y) in x.chunks_exact(self.columns).zip(y.chunks_exact_mut(rows)) {
            for (row, out) in self.values.chunks_exact(self.columns).zip(y) {
                *out = dot(row, x);
            }
        }
    }
}

fn dot(w: &[Bf16], x: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (w_whole, x_whole) = (w.chunks_exact(LANES), x.chunks_exact(LANES));
    let rest = w_whole.remainder().iter().zip(x_whole.remainder());
    let rest = rest.map(|(&w, x)| f32::from(w) * x).sum::<f32>();
    for (w, x) in w_whole.zip(x_whole) {
        for lane in 0..LANES {
            sums[lane] += f32::from(w[lane]) * x[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Normalises each row of the scale's width, in place.
pub fn rms_norm(x: &mut [f32], scale: &[Bf16], eps: f32) {
    for row in x.chunks_exact_mut(scale.len()) {
        let mean = row.iter().map(|v| v * v).sum::<f32>() / scale.len() as f32;
        let factor = 1.0 / (mean + eps).sqrt();
        for (value, &scale) in row.iter_mut().zip(scale) {
            *value = *value * factor * f32::from(scale);
        }
    }
}

pub fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in x.iter_mut() {
        *value = (*value - most).exp();
        sum += *value;
    }
    x.iter_mut().for_each(|value| *value /= sum);
}

pub fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// The first of the largest.
pub fn argmax(x: &[f32]) -> u32 {
    let best = x.iter().enumerate().fold(0, |best, (i, v)| if *v > x[best] { i } else { best });
    best as u32
}

/// Rotary position embedding: the first half of a head turns with the second.
pub struct Rope {
    inverse_frequencies: Vec<f32>,
}

impl Rope {
    pub fn new(head_dim: usize, theta: f64) -> Self {
        let frequency = |i: usize| (1.0 / theta.powf(2.0 * i as f64 / head_dim as f64)) as f32;
        Rope { inverse_frequencies: (0..head_dim / 2).map(frequency).collect() }
    }

    pub fn turn(&self, heads: &mut [f32], position: u64) {
        let half = self.inverse_frequencies.len();
        for head in heads.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            for ((a, b), inverse) in first.iter_mut().zip(second).zip(&self.inverse_frequencies) {
                let (sine, cosine) = (position as f32 * inverse).sin_cos();
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
    }
}
