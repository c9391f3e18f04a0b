//! Every data type goes in and comes out as it was.
use std::sync::Arc;

use moepage::*;

use crate::set_up::*;

const PLAIN: [Dtype; 10] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::F8E4M3,
    Dtype::F8E5M2,
    Dtype::F8E8M0,
    Dtype::U8,
    Dtype::I8,
    Dtype::I32,
    Dtype::I64,
];

/// One tensor `[4, 16]` per expert, as slices of one bank, and the same once more as a dense tensor.
fn model_of(dtype: Dtype) -> (Model, Arc<Vec<u8>>) {
    let bytes = 64 * dtype.size().unwrap() as usize;
    let owner = Arc::new(Numbers::new(u64::from(dtype.code())).bytes(bytes * 16));
    let bank = Bytes::shared(Arc::clone(&owner));
    let data = Bytes::from_elements(bank.slice(0..bytes).as_slice().to_vec());
    let banks = Banks {
        tensors: vec![ExpertTensor::new(Role::Gate, dtype, &[4, 16])],
        source: Experts::Memory((0..16).map(|e| bank.slice(e * bytes..(e + 1) * bytes)).collect()),
        dense: vec![DenseTensor { name: "dense".into(), dtype, shape: vec![4, 16], data }],
        ..shape(dtype)
    };
    (Model::from_banks(banks, ModelConfig::default()).unwrap(), owner)
}

#[test]
fn of_every_dtype_come_back_from_slots() {
    for dtype in PLAIN {
        let (model, owner) = model_of(dtype);
        let bytes = owner.len() / 16;
        let device = device();
        let pool = pool(&device, &model, 2);
        let mut session = session(&pool);
        for layer in 0..LAYERS {
            let step = session.begin(&StepInput::tokens(4, Phase::Decode)).unwrap();
            let ids: Vec<i32> = (0..EXPERTS as i32).collect();
            let mut layer = step.route_planned(layer, &Routing::new(&ids, &[1.0; 8])).unwrap();
            let mut seen = 0;
            loop {
                let plan = layer.plan().unwrap();
                for expert in plan.experts() {
                    let at = (plan.layer() * EXPERTS + expert.expert()) as usize * bytes;
                    let tensor = expert.tensor(0).unwrap();
                    assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[4, 16][..]));
                    assert_eq!(tensor.bytes(), &owner[at..at + bytes], "{dtype:?}");
                    seen += 1;
                }
                if !layer.next_group().unwrap() {
                    break;
                }
            }
            assert_eq!(seen, EXPERTS);
        }
    }
}

#[test]
fn of_every_dtype_come_back_from_models() {
    for dtype in PLAIN {
        let (model, owner) = model_of(dtype);
        let bytes = owner.len() / 16;
        let slot = model.info().unwrap().slot_bytes as usize;
        for expert in 0..16 {
            let mut out = vec![0; slot];
            model.read_expert(expert / EXPERTS, expert % EXPERTS, &mut out).unwrap();
            let at = expert as usize * bytes;
            assert_eq!(out[..bytes], owner[at..at + bytes], "{dtype:?}");
        }
        let dense = model.find_tensor("dense").unwrap();
        assert_eq!((dense.dtype(), dense.shape()), (dtype, &[4, 16][..]));
        assert_eq!(dense.bytes(), &owner[..bytes]);
        let mut part = vec![0; bytes - 3];
        model.read_tensor("dense", 2, &mut part).unwrap();
        assert_eq!(part, owner[2..bytes - 1]);
        assert_eq!(status(model.read_tensor("dense", 4, &mut part)), Status::Argument);
        assert_eq!(model.tensor_names().unwrap(), ["dense"]);
        assert_eq!(status(model.find_tensor("sparse")), Status::NotFound);
    }
}

#[test]
fn of_every_dtype_come_back_at_fixed_addresses() {
    for dtype in PLAIN {
        let (model, owner) = model_of(dtype);
        let half = owner.len() / 2;
        let device = device();
        let paged = PagedTensors::create(&device, &model, &PagedConfig::default()).unwrap();
        for layer in 0..LAYERS {
            paged.materialise(layer).unwrap();
            let acquired = paged.acquire(layer, Stream::default()).unwrap();
            assert_eq!(paged.state(layer).unwrap(), PagedState::Resident);
            let tensor = acquired.tensor(0).unwrap();
            assert_eq!(tensor.shape(), [8, 4, 16]);
            assert_eq!(tensor.bytes(), &owner[layer as usize * half..][..half], "{dtype:?}");
            assert_eq!(status(acquired.tensor(1)), Status::Argument);
            acquired.release(Stream::default()).unwrap();
        }
        paged.close().unwrap();
    }
}

#[test]
fn that_are_packed_or_short_are_refused() {
    let weights = Weights::new();
    for dtype in [Dtype::Int8, Dtype::Int4, Dtype::Int2] {
        let banks = Banks { source: weights.banks(Dtype::F32).source, ..shape(dtype) };
        let refused = Model::from_banks(banks, ModelConfig::default());
        assert_eq!(status(refused), Status::Unsupported);
    }
    let wide = Banks { source: weights.banks(Dtype::F16).source, ..shape(Dtype::F32) };
    let error = Model::from_banks(wide, ModelConfig::default()).unwrap_err();
    assert_eq!(error.status(), Status::Argument);
    assert!(error.text().contains("8192 bytes, its shape takes 16384"), "{error}");

    let mut few = weights.banks(Dtype::F32);
    if let Experts::Memory(bytes) = &mut few.source {
        bytes.pop();
    }
    assert_eq!(status(Model::from_banks(few, ModelConfig::default())), Status::Argument);

    let tensor = ExpertTensor::new(Role::Down, Dtype::F32, &[1]);
    // 2^64 tensors, of which none is given
    let (many, tensors) = (1 << 31, vec![tensor; 4]);
    let countless = Banks { moe_layers: many, experts: many, tensors, ..Banks::default() };
    let error = Model::from_banks(countless, ModelConfig::default()).unwrap_err();
    assert!(error.text().contains("18446744073709551616"), "{error}");

    let mut flat = weights.banks(Dtype::F32);
    flat.tensors[0] = ExpertTensor::new(Role::GateUp, Dtype::F32, &[1, 1, 2, 32, 64]);
    assert_eq!(status(Model::from_banks(flat, ModelConfig::default())), Status::Argument);
}

#[test]
fn that_lie_unaligned_are_refused() {
    let bytes = Bytes::from_elements(vec![0f32; 9]);
    let data = bytes.slice(1..33);
    let dense = DenseTensor { name: "d".into(), dtype: Dtype::F32, shape: vec![8], data };
    let banks = Banks { dense: vec![dense], ..Weights::new().banks(Dtype::F32) };
    assert_eq!(status(Model::from_banks(banks, ModelConfig::default())), Status::Argument);
}

#[test]
fn outlive_the_vectors_they_came_from() {
    let owner = Arc::new(vec![7u8; 64 * 16]);
    let bank = Bytes::shared(Arc::clone(&owner));
    let banks = Banks {
        tensors: vec![ExpertTensor::new(Role::Gate, Dtype::U8, &[4, 16])],
        source: Experts::Memory(vec![bank.slice(0..64); 16]),
        ..shape(Dtype::U8)
    };
    let model = Model::from_banks(banks, ModelConfig::default()).unwrap();
    drop(bank);
    assert!(Arc::strong_count(&owner) > 1, "the model shares it");
    model.close().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn of_long_names_are_listed() {
    let name = "layer.".repeat(900);
    let data = Bytes::from(vec![1]);
    let dense = DenseTensor { name: name.clone(), dtype: Dtype::U8, shape: vec![1], data };
    let banks = Banks { dense: vec![dense], ..Weights::new().banks(Dtype::F32) };
    let model = Model::from_banks(banks, ModelConfig::default()).unwrap();
    assert_eq!(model.tensor_names().unwrap(), [name.as_str()]);
    assert_eq!(model.find_tensor(&name).unwrap().bytes(), [1]);
}
