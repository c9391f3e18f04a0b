//! Small models and devices that the tests share.
use moepage::*;

pub const LAYERS: u32 = 2;
pub const EXPERTS: u32 = 8;
pub const TOP_K: u32 = 2;
pub const HIDDEN: usize = 64;
pub const INNER: usize = 32;

/// Numbers that follow from a seed alone: multiples of 1/64 from -1 to 1, exact in every float type
/// of 16 bits.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.bits() % 129) as f32 / 64.0 - 1.0).collect()
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.bits() as u8).collect()
    }
}

pub fn as_bytes(dtype: Dtype, values: &[f32]) -> Bytes {
    match dtype {
        Dtype::F32 => Bytes::from_elements(values.to_vec()),
        Dtype::Bf16 => Bytes::from_elements(values.iter().map(|&v| Bf16::from(v)).collect()),
        Dtype::F16 => Bytes::from_elements(values.iter().map(|&v| F16::from(v)).collect()),
        _ => panic!("{dtype:?} holds no floats here"),
    }
}

/// All experts' weights, gate rows before up rows.
pub struct Weights {
    pub gate_up: Vec<Vec<f32>>,
    pub down: Vec<Vec<f32>>,
}

impl Weights {
    pub fn new() -> Self {
        let mut numbers = Numbers::new(7);
        let n = (LAYERS * EXPERTS) as usize;
        Weights {
            gate_up: (0..n).map(|_| numbers.floats(2 * INNER * HIDDEN)).collect(),
            down: (0..n).map(|_| numbers.floats(HIDDEN * INNER)).collect(),
        }
    }

    pub fn banks(&self, dtype: Dtype) -> Banks {
        let pairs = self.gate_up.iter().zip(&self.down);
        let bytes = pairs.flat_map(|(a, b)| [as_bytes(dtype, a), as_bytes(dtype, b)]).collect();
        Banks { source: Experts::Memory(bytes), ..shape(dtype) }
    }

    pub fn model(&self, dtype: Dtype) -> Model {
        Model::from_banks(self.banks(dtype), ModelConfig::default()).unwrap()
    }
}

/// A model of that shape, without its numbers.
pub fn shape(dtype: Dtype) -> Banks {
    Banks {
        moe_layers: LAYERS,
        experts: EXPERTS,
        top_k: TOP_K,
        hidden: HIDDEN as u32,
        expert_intermediate: INNER as u32,
        tensors: vec![
            ExpertTensor::new(Role::GateUp, dtype, &[2 * INNER as u64, HIDDEN as u64]),
            ExpertTensor::new(Role::Down, dtype, &[HIDDEN as u64, INNER as u64]),
        ],
        ..Default::default()
    }
}

pub fn device() -> Device {
    let config =
        DeviceConfig { budget_bytes: 16 << 20, workspace_bytes: 4 << 20, ..Default::default() };
    Device::open("host", config).unwrap()
}

pub fn pool<'a>(device: &'a Device, model: &'a Model, slots: u64) -> ExpertPool<'a> {
    ExpertPool::create(device, model, &ExpertPoolConfig { slots, ..Default::default() }).unwrap()
}

pub fn session<'p>(pool: &'p ExpertPool<'p>) -> Session<'p> {
    Session::create(pool, None, SessionConfig { max_tokens: 16, ..Default::default() }).unwrap()
}

/// Each token's choices: distinct experts, and weights that add up to one.
pub fn choices(n_tokens: usize) -> (Vec<i32>, Vec<f32>) {
    let ids = (0..n_tokens as u32).flat_map(|t| [t % EXPERTS, (3 * t + 1) % EXPERTS]);
    (ids.map(|id| id as i32).collect(), [0.75, 0.25].repeat(n_tokens))
}

pub fn status<T: std::fmt::Debug>(result: Result<T>) -> Status {
    result.unwrap_err().status()
}

/// A file that is gone with the value.
pub struct File(pub std::path::PathBuf);

impl File {
    pub fn new(name: &str) -> Self {
        File(std::env::temp_dir().join(format!("moepage-{}-{name}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
