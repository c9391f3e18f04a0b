//! The exponent-Huffman codec, and block formats, on the caller's memory.
use moepage_sys as sys;

use crate::error::{check, Error, Result};
use crate::types::{c_text, pointer_or_null, Dtype};

/// The most bytes that a stream of `n` elements takes; `None` for a type that is not coded, or for
/// too many.
pub fn bound(dtype: Dtype, n: u64) -> Option<u64> {
    // SAFETY: takes any numbers.
    let bytes = unsafe { sys::moepage_exph_bound(dtype.code(), n) };
    (bytes > 0).then_some(bytes)
}

fn element_bytes(dtype: Dtype) -> Result<usize> {
    dtype.size().map(|size| size as usize).ok_or_else(|| refused(dtype))
}

fn refused(dtype: Dtype) -> Error {
    Error::argument(format!("{dtype:?} is not coded: Bf16, F16, F8E4M3 and F8E5M2 are"))
}

/// Encodes the elements in `bytes`.
pub fn encode(dtype: Dtype, bytes: &[u8]) -> Result<Vec<u8>> {
    let size = element_bytes(dtype)?;
    if bytes.len() % size != 0 {
        let n = bytes.len();
        return Err(Error::argument(format!("{n} bytes are no whole number of {dtype:?}")));
    }
    let n = (bytes.len() / size) as u64;
    let capacity = bound(dtype, n).ok_or_else(|| refused(dtype))?;
    let mut out = vec![0u8; capacity as usize];
    let mut written = 0;
    // SAFETY: `bytes` has n elements, `out` `capacity` bytes.
    check(unsafe {
        sys::moepage_exph_encode(
            dtype.code(),
            bytes.as_ptr().cast(),
            n,
            out.as_mut_ptr().cast(),
            capacity,
            &mut written,
        )
    })?;
    out.truncate(written as usize);
    Ok(out)
}

/// Decodes a stream, after checking it, with the fastest decoder: `out` has room for exactly its
/// elements.
pub fn decode(dtype: Dtype, stream: &[u8], out: &mut [u8]) -> Result<()> {
    decode_with(None, dtype, stream, out)
}

/// The same by the decoder of that name: `portable`, `avx2`, `avx512`.
pub fn decode_with(
    decoder: Option<&str>,
    dtype: Dtype,
    stream: &[u8],
    out: &mut [u8],
) -> Result<()> {
    let decoder = decoder.map(|name| c_text(name, "decoder")).transpose()?;
    let size = element_bytes(dtype)?;
    if out.len() % size != 0 {
        let n = out.len();
        return Err(Error::argument(format!("{n} bytes are no whole number of {dtype:?}")));
    }
    // SAFETY: the stream's length is said; `out` has room for that many elements.
    check(unsafe {
        sys::moepage_exph_decode(
            pointer_or_null(&decoder),
            dtype.code(),
            stream.as_ptr().cast(),
            stream.len() as u64,
            out.as_mut_ptr().cast(),
            (out.len() / size) as u64,
        )
    })
}

/// The weights of whole blocks of a block format: `docs/format-blocks.md` has their values.
pub fn decode_blocks(dtype: Dtype, blocks: &[u8]) -> Result<Vec<f32>> {
    let (weights, bytes) =
        dtype.block().ok_or_else(|| Error::argument(format!("{dtype:?} is no block format")))?;
    let len = blocks.len() as u64;
    if len % bytes != 0 {
        return Err(Error::argument(format!(
            "{len} bytes are no whole blocks of {dtype:?}, of {bytes} each"
        )));
    }
    let n = len / bytes * weights;
    let mut out = vec![0f32; n as usize];
    // SAFETY: the blocks' length is said; `out` has room for their weights.
    check(unsafe {
        sys::moepage_blocks_decode(dtype.code(), blocks.as_ptr().cast(), len, out.as_mut_ptr(), n)
    })?;
    Ok(out)
}
