//! Block formats, layers of different types, GGUF files, and slots of a smaller form.
use moepage::codec::decode_blocks;
use moepage::*;

use crate::ffn::{assert_close, swiglu};
use crate::set_up::*;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/");

const FORMATS: [(&str, Dtype); 23] = [
    ("Q4_0", Dtype::Q4_0),
    ("Q4_1", Dtype::Q4_1),
    ("Q5_0", Dtype::Q5_0),
    ("Q5_1", Dtype::Q5_1),
    ("Q8_0", Dtype::Q8_0),
    ("Q2_K", Dtype::Q2K),
    ("Q3_K", Dtype::Q3K),
    ("Q4_K", Dtype::Q4K),
    ("Q5_K", Dtype::Q5K),
    ("Q6_K", Dtype::Q6K),
    ("IQ4_NL", Dtype::Iq4Nl),
    ("IQ4_XS", Dtype::Iq4Xs),
    ("MXFP4", Dtype::Mxfp4),
    ("NVFP4", Dtype::Nvfp4),
    ("W4G32_F16", Dtype::W4g32F16),
    ("W4G64_F16", Dtype::W4g64F16),
    ("W4G128_F16", Dtype::W4g128F16),
    ("W4G32_BF16", Dtype::W4g32Bf16),
    ("W4G64_BF16", Dtype::W4g64Bf16),
    ("W4G128_BF16", Dtype::W4g128Bf16),
    ("NVFP4G64_F32", Dtype::Nvfp4g64F32),
    ("NVFP4G128_F32", Dtype::Nvfp4g128F32),
    ("NVFP4G256_F32", Dtype::Nvfp4g256F32),
];

/// Bits, those of every NaN the same.
fn bits_of(value: f32) -> u32 {
    if value.is_nan() {
        0x7fc0_0000
    } else {
        value.to_bits()
    }
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// data/blocks has 16 blocks per format and what another decoder makes of them: a hash of all
/// values, and the bits of four.
#[test]
fn of_every_format_decode_to_the_reference_values() {
    for (name, dtype) in FORMATS {
        let (weights, bytes) = dtype.block().unwrap();
        let (weights, bytes) = (weights as usize, bytes as usize);
        let file = std::fs::read(format!("{DATA}blocks/{name}.bin")).unwrap();
        assert_eq!((dtype.size(), file.len()), (None, 16 * (bytes + 24)), "{name}");
        for case in file.chunks(bytes + 24) {
            let values = decode_blocks(dtype, &case[..bytes]).unwrap();
            assert_eq!(values.len(), weights);
            let hash = u64::from_le_bytes(case[bytes..][..8].try_into().unwrap());
            assert_eq!(fnv(values.iter().flat_map(|&v| bits_of(v).to_le_bytes())), hash, "{name}");
            for (k, four) in case[bytes + 8..].chunks(4).enumerate() {
                let want = f32::from_le_bytes(four.try_into().unwrap());
                assert_eq!(bits_of(values[k * (weights + 1) / 4]), bits_of(want), "{name}");
            }
        }
    }
}

#[test]
fn that_are_none_are_refused() {
    assert_eq!(decode_blocks(Dtype::Q8_0, &[]).unwrap(), []);
    assert_eq!(status(decode_blocks(Dtype::Q8_0, &[0; 33])), Status::Argument);
    assert_eq!(status(decode_blocks(Dtype::F32, &[0; 32])), Status::Argument);
    assert_eq!((Dtype::U8.block(), Dtype::Int4.block()), (None, None));
}

/// Bytes of a tensor of data/gguf, from byte `from` on: they follow from its name.
fn made(name: &str, from: usize, n: usize) -> Vec<u8> {
    let first =
        name.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
    let at = |i: usize| first.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (from..from + n).map(|i| (at(i) >> 58) as u8).collect()
}

fn gguf() -> Model {
    Model::open(format!("{DATA}gguf/whole.gguf")).unwrap()
}

#[test]
fn of_gguf_files_come_with_metadata() {
    let model = gguf();
    let of = |key| model.metadata(key).unwrap();
    assert_eq!(of("general.architecture"), Metadata::Text(b"deepseek2"));
    assert_eq!(of("deepseek2.block_count"), Metadata::Integer(3));
    assert_eq!(of("deepseek2.rope.freq_base"), Metadata::Real(10000.5));
    assert_eq!(of("tokenizer.ggml.add_bos_token"), Metadata::Truth(true));
    let texts =
        ["<s>".as_bytes(), "\u{120}the".as_bytes(), b"", b"\xff\xfe", "\u{65e5}".as_bytes()];
    let texts = texts.into_iter().map(Metadata::Text).collect();
    assert_eq!(of("tokenizer.ggml.tokens"), Metadata::Array(texts));
    let types = [3, 1, 1, 6, -1].into_iter().map(Metadata::Integer).collect();
    assert_eq!(of("tokenizer.ggml.token_type"), Metadata::Array(types));
    assert_eq!(status(model.metadata("moepage.largest")), Status::Unsupported, "2^64 - 1");
    assert_eq!(status(model.metadata("none such")), Status::NotFound);
    assert_eq!(status(model.metadata("a\0b")), Status::Argument);
    let banks = Weights::new().model(Dtype::F32);
    assert_eq!(status(banks.metadata("general.architecture")), Status::NotFound);
}

#[test]
fn of_gguf_files_differ_from_layer_to_layer() {
    let model = gguf();
    let info = model.info().unwrap();
    assert_eq!((info.layouts, info.moe_layers, info.experts), (2, 2, 2));
    for (layer, down) in [Dtype::Q5_1, Dtype::Mxfp4].into_iter().enumerate() {
        let tensors = model.layer_tensors(layer as u32).unwrap();
        let mut slot = vec![0; info.slot_bytes as usize];
        model.read_expert(layer as u32, 1, &mut slot).unwrap();
        for tensor in &tensors {
            let (name, dtype, shape) = match tensor.role().unwrap() {
                Role::Gate => ("gate", Dtype::Q4_0, [64, 32]),
                Role::Up => ("up", Dtype::Q4_0, [64, 32]),
                _ => ("down", down, [32, 64]),
            };
            assert_eq!((tensor.dtype(), tensor.shape()), (Some(dtype), &shape[..]));
            assert_eq!(tensor.bytes(), 64 * dtype.block().unwrap().1);
            let name = format!("blk.{}.ffn_{name}_exps.weight", layer + 1);
            let n = tensor.bytes() as usize; // of expert 0, which comes first in the file
            assert_eq!(slot[tensor.offset() as usize..][..n], made(&name, n, n), "{name}");
        }
        let first = model.expert_tensors().unwrap();
        assert_eq!(format!("{first:?}") == format!("{tensors:?}"), layer == 0);
    }
    assert_eq!(status(model.layer_tensors(2)), Status::Argument);
    let dense = model.find_tensor("token_embd.weight").unwrap();
    assert_eq!((dense.dtype(), dense.shape()), (Dtype::Q8_0, &[5, 32][..]));
    assert_eq!(dense.bytes(), made("token_embd.weight", 0, 5 * 34));
    let values = decode_blocks(dense.dtype(), dense.bytes()).unwrap();
    assert_eq!(values, q8(dense.bytes()));
}

/// A scale and 32 integers each.
fn q8(blocks: &[u8]) -> Vec<f32> {
    let values = blocks.chunks(34).flat_map(|block| {
        let scale = f32::from(F16(u16::from_le_bytes([block[0], block[1]])));
        block[2..].iter().map(move |&q| scale * f32::from(q as i8))
    });
    values.collect()
}

/// A scale, then the low and after them the high halves of 16 bytes.
fn q4(blocks: &[u8]) -> Vec<f32> {
    let values = blocks.chunks(18).flat_map(|block| {
        let scale = f32::from(F16(u16::from_le_bytes([block[0], block[1]])));
        let low = block[2..].iter().map(|q| q & 15);
        let all = low.chain(block[2..].iter().map(|q| q >> 4));
        all.map(move |q| scale * (f32::from(q) - 8.0))
    });
    values.collect()
}

/// Blocks with scales of 2^-5.
fn scaled(numbers: &mut Numbers, n: usize, bytes: usize) -> Vec<u8> {
    let mut blocks = numbers.bytes(n / 32 * bytes);
    blocks.chunks_mut(bytes).for_each(|block| block[..2].copy_from_slice(&[0, 0x28]));
    blocks
}

/// A model of which every layer has other types, and what it is in floats.
fn mixed() -> (Banks, Vec<Vec<f32>>) {
    let mut numbers = Numbers::new(9);
    let shapes = [[2 * INNER, HIDDEN], [HIDDEN, INNER]];
    let (mut layer_tensors, mut bytes, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for types in [[Dtype::Q8_0, Dtype::Bf16], [Dtype::F32, Dtype::Q4_0]] {
        let tensor = |role: Role, i: usize| {
            ExpertTensor::new(role, types[i], &shapes[i].map(|extent| extent as u64))
        };
        layer_tensors.push(vec![tensor(Role::GateUp, 0), tensor(Role::Down, 1)]);
        for i in 0..2 * EXPERTS as usize {
            let n = shapes[i % 2][0] * shapes[i % 2][1];
            let (of, values) = match types[i % 2] {
                Dtype::Q8_0 => {
                    let blocks = scaled(&mut numbers, n, 34);
                    (Bytes::from(blocks.clone()), q8(&blocks))
                }
                Dtype::Q4_0 => {
                    let blocks = scaled(&mut numbers, n, 18);
                    (Bytes::from(blocks.clone()), q4(&blocks))
                }
                dtype => {
                    let values = numbers.floats(n);
                    (as_bytes(dtype, &values), values)
                }
            };
            bytes.push(of);
            weights.push(values);
        }
    }
    let source = Experts::Memory(bytes);
    (Banks { tensors: Vec::new(), layer_tensors, source, ..shape(Dtype::F32) }, weights)
}

#[test]
fn of_banks_may_differ_from_layer_to_layer() {
    let (banks, weights) = mixed();
    let bytes = match &banks.source {
        Experts::Memory(bytes) => bytes.clone(),
        _ => unreachable!(),
    };
    let model = Model::from_banks(banks, ModelConfig::default()).unwrap();
    let info = model.info().unwrap();
    assert_eq!((info.layouts, info.ffn_supported), (LAYERS, true));
    let device = device();
    let pool = pool(&device, &model, 0);
    let mut session = session(&pool);
    let (ids, top) = choices(1);
    let x: Vec<f32> = (0..HIDDEN).map(|i| (i % 9) as f32 / 8.0 - 0.5).collect();
    let doubles: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    for layer in 0..LAYERS {
        let mut want = vec![0.0; HIDDEN];
        let mut routed = step.route_planned(layer, &Routing::new(&ids, &top)).unwrap();
        let plan = routed.plan().unwrap();
        for expert in plan.experts() {
            let at = 2 * (layer * EXPERTS + expert.expert()) as usize;
            for (i, of) in model.layer_tensors(layer).unwrap().iter().enumerate() {
                let tensor = expert.tensor(i).unwrap();
                assert_eq!((Some(tensor.dtype()), tensor.shape()), (of.dtype(), of.shape()));
                assert_eq!(tensor.bytes(), bytes[at + i].as_slice(), "layer {layer}, tensor {i}");
            }
            let weight = top[ids.iter().position(|&id| id as u32 == expert.expert()).unwrap()];
            let added = swiglu(&weights[at], &weights[at + 1], &doubles);
            want.iter_mut().zip(added).for_each(|(y, a)| *y += f64::from(weight) * a);
        }
        let mut y = vec![0.0; HIDDEN];
        routed.ffn(&x, &mut y).unwrap();
        assert_close(&y, &want, 1e-5);
        routed.retire().unwrap();
    }
    step.end().unwrap();
}

#[test]
fn of_banks_that_contradict_themselves_are_refused() {
    let refused = |spoil: &dyn Fn(&mut Banks)| {
        let (mut banks, _) = mixed();
        spoil(&mut banks);
        status(Model::from_banks(banks, ModelConfig::default()))
    };
    let tensor = ExpertTensor::new;
    let (wide, inner) = (HIDDEN as u64, INNER as u64);
    let both = |banks: &mut Banks| banks.tensors = banks.layer_tensors[0].clone();
    let few_layers = |banks: &mut Banks| banks.layer_tensors.truncate(1);
    let few_tensors = |banks: &mut Banks| banks.layer_tensors[1].truncate(1);
    let role = |banks: &mut Banks| {
        banks.layer_tensors[1][1] = tensor(Role::Up, Dtype::Q4_0, &[wide, inner]);
    };
    let cut = |banks: &mut Banks| {
        banks.layer_tensors[1][1] = tensor(Role::Down, Dtype::Q4_0, &[wide * 2, inner / 2]);
    };
    let flat = |banks: &mut Banks| banks.layer_tensors[1][1] = tensor(Role::Down, Dtype::Q4_0, &[]);
    let other = |banks: &mut Banks| {
        if let Experts::Memory(bytes) = &mut banks.source {
            bytes[2 * EXPERTS as usize] = bytes[0].clone();
        }
    };
    let spoilers: [&dyn Fn(&mut Banks); 7] =
        [&both, &few_layers, &few_tensors, &role, &cut, &flat, &other];
    for (i, spoil) in spoilers.into_iter().enumerate() {
        assert_eq!(refused(spoil), Status::Argument, "case {i}");
    }
    let packed = |banks: &mut Banks| {
        banks.layer_tensors[1][1] = tensor(Role::Down, Dtype::Int4, &[wide, inner]);
    };
    assert_eq!(refused(&packed), Status::Unsupported);
}

/// What is computed of a smaller form is near, and not the same.
#[test]
fn that_are_packed_smaller_may_fill_the_slots() {
    let weights = Weights::new();
    let file = File::new("int8");
    let config = PackConfig { forms: vec![Form::Dense, Form::Int8], ..Default::default() };
    weights.model(Dtype::Bf16).write_pack(&file.0, &config).unwrap();
    let model = Model::open(&file.0).unwrap();
    let device = device();
    let of = |form| ExpertPoolConfig { slots: 4, slot_form: Some(form), ..Default::default() };
    let missing = ExpertPool::create(&device, &model, &of(Form::Int4));
    assert_eq!(status(missing), Status::Unsupported);
    let pool = ExpertPool::create(&device, &model, &of(Form::Int8)).unwrap();
    let info = pool.info().unwrap();
    assert_eq!(info.slot_form, Form::Int8.code());
    assert!(info.slot_bytes >= model.form(Form::Int8).unwrap().most_bytes);
    assert!(info.slot_bytes < model.form(Form::Dense).unwrap().most_bytes);

    let mut session = session(&pool);
    let (ids, top) = choices(1);
    let x = [0.5f32; HIDDEN];
    let mut want = vec![0.0; HIDDEN];
    for (&id, &weight) in ids.iter().zip(&top) {
        let (gate_up, down) = (&weights.gate_up[id as usize], &weights.down[id as usize]);
        let added = swiglu(gate_up, down, &[0.5; HIDDEN]);
        want.iter_mut().zip(added).for_each(|(y, a)| *y += f64::from(weight) * a);
    }
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    let mut layer = step.route_planned(0, &Routing::new(&ids, &top)).unwrap();
    let expert = layer.plan().unwrap().experts().next().unwrap();
    assert_eq!(expert.dtype(), Some(Dtype::Int8));
    assert_eq!(status(expert.tensor(0)), Status::Unsupported);
    let mut y = vec![0.0; HIDDEN];
    layer.ffn(&x, &mut y).unwrap();
    assert_close(&y, &want, 0.02);
    assert!(y.iter().zip(&want).any(|(y, w)| (f64::from(*y) - w).abs() > 1e-4), "not the same");
    layer.retire().unwrap();
    step.end().unwrap();
}
