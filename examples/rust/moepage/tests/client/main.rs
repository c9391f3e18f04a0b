//! What the wrapper promises, against small models with known numbers.
mod blocks;
mod callbacks;
mod engine;
mod ffn;
mod files;
mod kv;
mod misuse;
mod set_up;
mod tensors;
mod threads;
