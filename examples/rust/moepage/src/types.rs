//! Small types that everything uses: enumerations, elements, tensors, streams.
use std::ffi::{c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moepage_sys as sys;

use crate::error::{Error, Result};

/// An enumeration with the numbers of its C constants.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $constant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum $name {
            $( $(#[$each])* $variant = sys::$constant, )*
        }

        impl $name {
            /// The number in C.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The value with this number in C, if this version of the crate knows it.
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $( sys::$constant => Some($name::$variant), )*
                    _ => None,
                }
            }
        }
    };
    (default $default:ident; $(#[$doc:meta])* $name:ident $body:tt) => {
        $crate::types::numbered! { $(#[$doc])* $name $body }
        impl Default for $name {
            fn default() -> Self {
                $name::$default
            }
        }
    };
}
pub(crate) use numbered;

numbered! {
    /// Element type of a tensor.
    Dtype {
        /// 32-bit floats.
        F32 = MOEPAGE_DTYPE_F32,
        /// IEEE half floats.
        F16 = MOEPAGE_DTYPE_F16,
        /// The upper halves of 32-bit floats.
        Bf16 = MOEPAGE_DTYPE_BF16,
        /// 8-bit floats, 4 bits of exponent.
        F8E4M3 = MOEPAGE_DTYPE_F8_E4M3,
        /// 8-bit floats, 5 bits of exponent.
        F8E5M2 = MOEPAGE_DTYPE_F8_E5M2,
        /// Power-of-two scales of MX formats.
        F8E8M0 = MOEPAGE_DTYPE_F8_E8M0,
        /// Packed sub-byte weights, such as MXFP4 pairs.
        U8 = MOEPAGE_DTYPE_U8,
        /// 8-bit integers.
        I8 = MOEPAGE_DTYPE_I8,
        /// 32-bit integers.
        I32 = MOEPAGE_DTYPE_I32,
        /// 64-bit integers.
        I64 = MOEPAGE_DTYPE_I64,
        /// A matrix of 8-bit integers with its scales behind them.
        Int8 = MOEPAGE_DTYPE_INT8,
        /// The same of 4 bits.
        Int4 = MOEPAGE_DTYPE_INT4,
        /// The same of 2 bits.
        Int2 = MOEPAGE_DTYPE_INT2,
        /// Blocks of 32 weights in 18 bytes.
        Q4_0 = MOEPAGE_DTYPE_Q4_0,
        /// Blocks of 32 weights in 20 bytes.
        Q4_1 = MOEPAGE_DTYPE_Q4_1,
        /// Blocks of 32 weights in 22 bytes.
        Q5_0 = MOEPAGE_DTYPE_Q5_0,
        /// Blocks of 32 weights in 24 bytes.
        Q5_1 = MOEPAGE_DTYPE_Q5_1,
        /// Blocks of 32 weights in 34 bytes.
        Q8_0 = MOEPAGE_DTYPE_Q8_0,
        /// Blocks of 256 weights in 84 bytes.
        Q2K = MOEPAGE_DTYPE_Q2_K,
        /// Blocks of 256 weights in 110 bytes.
        Q3K = MOEPAGE_DTYPE_Q3_K,
        /// Blocks of 256 weights in 144 bytes.
        Q4K = MOEPAGE_DTYPE_Q4_K,
        /// Blocks of 256 weights in 176 bytes.
        Q5K = MOEPAGE_DTYPE_Q5_K,
        /// Blocks of 256 weights in 210 bytes.
        Q6K = MOEPAGE_DTYPE_Q6_K,
        /// Blocks of 32 weights in 18 bytes.
        Iq4Nl = MOEPAGE_DTYPE_IQ4_NL,
        /// Blocks of 256 weights in 136 bytes.
        Iq4Xs = MOEPAGE_DTYPE_IQ4_XS,
        /// Blocks of 32 weights in 17 bytes.
        Mxfp4 = MOEPAGE_DTYPE_MXFP4,
        /// Blocks of 64 weights in 36 bytes.
        Nvfp4 = MOEPAGE_DTYPE_NVFP4,
        /// Blocks of 32 W4A16 weights in 20 bytes.
        W4g32F16 = MOEPAGE_DTYPE_W4G32_F16,
        /// Blocks of 64 W4A16 weights in 36 bytes.
        W4g64F16 = MOEPAGE_DTYPE_W4G64_F16,
        /// Blocks of 128 W4A16 weights in 68 bytes.
        W4g128F16 = MOEPAGE_DTYPE_W4G128_F16,
        /// Blocks of 32 W4A16 weights in 20 bytes.
        W4g32Bf16 = MOEPAGE_DTYPE_W4G32_BF16,
        /// Blocks of 64 W4A16 weights in 36 bytes.
        W4g64Bf16 = MOEPAGE_DTYPE_W4G64_BF16,
        /// Blocks of 128 W4A16 weights in 68 bytes.
        W4g128Bf16 = MOEPAGE_DTYPE_W4G128_BF16,
        /// Blocks of 64 NVFP4 weights with a factor in 40 bytes.
        Nvfp4g64F32 = MOEPAGE_DTYPE_NVFP4G64_F32,
        /// Blocks of 128 NVFP4 weights with a factor in 76 bytes.
        Nvfp4g128F32 = MOEPAGE_DTYPE_NVFP4G128_F32,
        /// Blocks of 256 NVFP4 weights with a factor in 148 bytes.
        Nvfp4g256F32 = MOEPAGE_DTYPE_NVFP4G256_F32,
    }
}

impl Dtype {
    /// Bytes of one element; `None` for the packed versions of experts, and for block formats.
    pub fn size(self) -> Option<u64> {
        match self {
            Dtype::F32 | Dtype::I32 => Some(4),
            Dtype::F16 | Dtype::Bf16 => Some(2),
            Dtype::I64 => Some(8),
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E8M0 | Dtype::U8 | Dtype::I8 => Some(1),
            _ => None,
        }
    }

    /// Weights and bytes of a block, of the block formats. Blocks lie along a tensor's
    /// last dimension; [`crate::codec::decode_blocks`] has their weights.
    pub fn block(self) -> Option<(u64, u64)> {
        match self {
            Dtype::Q4_0 => Some((32, 18)),
            Dtype::Q4_1 => Some((32, 20)),
            Dtype::Q5_0 => Some((32, 22)),
            Dtype::Q5_1 => Some((32, 24)),
            Dtype::Q8_0 => Some((32, 34)),
            Dtype::Q2K => Some((256, 84)),
            Dtype::Q3K => Some((256, 110)),
            Dtype::Q4K => Some((256, 144)),
            Dtype::Q5K => Some((256, 176)),
            Dtype::Q6K => Some((256, 210)),
            Dtype::Iq4Nl => Some((32, 18)),
            Dtype::Iq4Xs => Some((256, 136)),
            Dtype::Mxfp4 => Some((32, 17)),
            Dtype::Nvfp4 => Some((64, 36)),
            Dtype::W4g32F16 => Some((32, 20)),
            Dtype::W4g64F16 => Some((64, 36)),
            Dtype::W4g128F16 => Some((128, 68)),
            Dtype::W4g32Bf16 => Some((32, 20)),
            Dtype::W4g64Bf16 => Some((64, 36)),
            Dtype::W4g128Bf16 => Some((128, 68)),
            Dtype::Nvfp4g64F32 => Some((64, 40)),
            Dtype::Nvfp4g128F32 => Some((128, 76)),
            Dtype::Nvfp4g256F32 => Some((256, 148)),
            _ => None,
        }
    }
}

numbered! {
    /// What an expert's tensor is for. H = hidden size, I = the expert's intermediate size.
    Role {
        /// Fused `[2I, H]`.
        GateUp = MOEPAGE_ROLE_GATE_UP,
        /// `[I, H]`.
        Gate = MOEPAGE_ROLE_GATE,
        /// `[I, H]`.
        Up = MOEPAGE_ROLE_UP,
        /// `[H, I]`.
        Down = MOEPAGE_ROLE_DOWN,
        /// Scales of [`Role::GateUp`].
        GateUpScale = MOEPAGE_ROLE_GATE_UP_SCALE,
        /// Scales of [`Role::Gate`].
        GateScale = MOEPAGE_ROLE_GATE_SCALE,
        /// Scales of [`Role::Up`].
        UpScale = MOEPAGE_ROLE_UP_SCALE,
        /// Scales of [`Role::Down`].
        DownScale = MOEPAGE_ROLE_DOWN_SCALE,
        /// `[2I]`.
        GateUpBias = MOEPAGE_ROLE_GATE_UP_BIAS,
        /// `[I]`.
        GateBias = MOEPAGE_ROLE_GATE_BIAS,
        /// `[I]`.
        UpBias = MOEPAGE_ROLE_UP_BIAS,
        /// `[H]`.
        DownBias = MOEPAGE_ROLE_DOWN_BIAS,
    }
}

numbered! {
    default Swiglu;
    /// What an expert computes of its gate and up projections.
    ExpertActivation {
        /// `gate * sigmoid(gate) * up`.
        Swiglu = MOEPAGE_ACTIVATION_SWIGLU,
        /// gpt-oss's, with an alpha and a limit.
        SwigluClamped = MOEPAGE_ACTIVATION_SWIGLU_CLAMPED,
        /// None that the library computes.
        Other = MOEPAGE_ACTIVATION_OTHER,
    }
}

numbered! {
    /// A form in which an expert's weights are stored.
    Form {
        /// The checkpoint's own numbers, laid out as in a slot.
        Dense = MOEPAGE_FORM_DENSE,
        /// Exponents Huffman-coded: lossless.
        Exph = MOEPAGE_FORM_EXPH,
        /// 8-bit integers, one scale per group of a row.
        Int8 = MOEPAGE_FORM_INT8,
        /// 4-bit integers.
        Int4 = MOEPAGE_FORM_INT4,
        /// 2-bit integers.
        Int2 = MOEPAGE_FORM_INT2,
    }
}

numbered! {
    default Decode;
    /// What a sequence's tokens of a step are.
    Phase {
        /// Tokens that were just sampled.
        Decode = MOEPAGE_PHASE_DECODE,
        /// Tokens of a prompt.
        Prefill = MOEPAGE_PHASE_PREFILL,
    }
}

/// A 16-bit float as its bits: the upper half of a 32-bit one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// An IEEE half float as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

impl From<Bf16> for f32 {
    fn from(value: Bf16) -> f32 {
        f32::from_bits(u32::from(value.0) << 16)
    }
}

impl From<f32> for Bf16 {
    /// Rounds to nearest even; a NaN stays one.
    fn from(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }
}

impl From<F16> for f32 {
    fn from(value: F16) -> f32 {
        let (sign, size) = (u32::from(value.0 & 0x8000) << 16, u32::from(value.0 & 0x7fff));
        let bits = match size >> 10 {
            0 => (size as f32 / SMALLEST_HALVES).to_bits(),
            31 => size << 13 | 0x7f80_0000,
            _ => (size << 13) + (112 << 23),
        };
        f32::from_bits(sign | bits)
    }
}

impl From<f32> for F16 {
    /// Rounds to nearest even; a NaN stays one.
    fn from(value: f32) -> F16 {
        let sign = (value.to_bits() >> 16 & 0x8000) as u16;
        let size = value.abs();
        let bits = size.to_bits();
        let half = if size.is_nan() {
            0x7e00
        } else if size >= 65520.0 {
            0x7c00
        } else if size < 1.0 / 16384.0 {
            // Where whole numbers are one apart, adding rounds.
            (size * SMALLEST_HALVES + 8388608.0).to_bits() & 0x7fff
        } else {
            (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13
        };
        F16(sign | half as u16)
    }
}

/// 2^24: so many of the smallest half floats make 1.
const SMALLEST_HALVES: f32 = 16777216.0;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::Bf16 {}
    impl Sealed for super::F16 {}
    impl Sealed for u8 {}
    impl Sealed for i8 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// A plain number that tensors consist of: any bits are a valid value.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Whether a tensor of this type consists of them.
    fn is(dtype: Dtype) -> bool;
}

/// What [`crate::Layer::ffn`] takes and gives.
pub trait Activation: Element {
    /// The type's name in the library.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($element:ty: $($dtype:ident)|+;)*) => {
        $( impl Element for $element {
            fn is(dtype: Dtype) -> bool {
                matches!(dtype, $(Dtype::$dtype)|+)
            }
        } )*
    };
}

elements! {
    f32: F32;
    Bf16: Bf16;
    F16: F16;
    u8: U8 | F8E4M3 | F8E5M2 | F8E8M0;
    i8: I8;
    i32: I32;
    i64: I64;
}

impl Activation for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Activation for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
impl Activation for F16 {
    const DTYPE: Dtype = Dtype::F16;
}

/// A tensor in host memory.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    dtype: Dtype,
    shape: [u64; sys::MOEPAGE_MAX_RANK],
    rank: usize,
    bytes: &'a [u8],
}

impl<'a> TensorRef<'a> {
    pub(crate) fn new(dtype: Dtype, shape: &[u64], bytes: &'a [u8]) -> Self {
        let mut own = [0; sys::MOEPAGE_MAX_RANK];
        own[..shape.len()].copy_from_slice(shape);
        TensorRef { dtype, shape: own, rank: shape.len(), bytes }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Row-major.
    pub fn shape(&self) -> &[u64] {
        &self.shape[..self.rank]
    }

    /// All of it.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its elements; an error if the tensor is of another type, or lies unaligned for this one.
    pub fn elements<T: Element>(&self) -> Result<&'a [T]> {
        if !T::is(self.dtype) {
            return Err(Error::argument(format!(
                "the tensor is of {:?}, not of {}",
                self.dtype,
                std::any::type_name::<T>()
            )));
        }
        // SAFETY: any bits are a valid `Element`.
        let (before, elements, after) = unsafe { self.bytes.align_to::<T>() };
        if !before.is_empty() || !after.is_empty() {
            return Err(Error::argument(format!(
                "the tensor's {} bytes are not aligned {}s",
                self.bytes.len(),
                std::any::type_name::<T>()
            )));
        }
        Ok(elements)
    }
}

/// A stream of the device that the caller's kernels run on. The default is NULL, which is CUDA's
/// default stream; the host device knows none.
#[derive(Clone, Copy, Debug)]
pub struct Stream(*mut c_void);

impl Stream {
    /// A `cudaStream_t`.
    ///
    /// # Safety
    /// A stream of the device's primary context, alive in every call that it is given to.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Stream(stream)
    }

    pub(crate) fn raw(self) -> *mut c_void {
        self.0
    }
}

impl Default for Stream {
    fn default() -> Self {
        Stream(std::ptr::null_mut())
    }
}

pub(crate) fn c_text(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::argument(format!("{what} {text:?} contains a NUL")))
}

pub(crate) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::argument(format!("path {path:?} contains a NUL")))
}

/// NULL for none.
pub(crate) fn pointer_or_null(text: &Option<CString>) -> *const std::os::raw::c_char {
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// # Safety
/// `text` is NULL, or NUL-terminated for as long as `'a`.
pub(crate) unsafe fn text_at<'a>(text: *const std::os::raw::c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// A slice of what the library shows; empty for NULL.
///
/// # Safety
/// `data` is NULL, or points to `n` elements that nobody writes as long as `'a`.
pub(crate) unsafe fn slice_at<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data, n) }
}

pub(crate) fn pointer_of<T>(data: Option<&[T]>) -> *const T {
    data.map_or(std::ptr::null(), <[T]>::as_ptr)
}

/// A length as the library's 32-bit count.
pub(crate) fn count(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::argument(format!("{n} {what} are more than 2^32 - 1")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit float comes back, and what lies between two goes to the nearer one, or from the
    /// middle to the even one.
    fn check_rounding<T>(make: fn(u16) -> T, bits: fn(T) -> u16, infinity: u16)
    where
        T: From<f32>,
        f32: From<T>,
    {
        for low in 0..infinity {
            let (a, b) = (f32::from(make(low)), f32::from(make(low + 1)));
            assert_eq!(bits(T::from(a)), low);
            assert_eq!(bits(T::from(-a)), low | 0x8000);
            if low + 1 == infinity {
                break;
            }
            let middle = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
            assert_eq!(bits(T::from(middle)), low + (low & 1), "between {a} and {b}");
            let (below, above) = (middle.to_bits() - 1, middle.to_bits() + 1);
            if f32::from_bits(below) > a {
                assert_eq!(bits(T::from(f32::from_bits(below))), low);
                assert_eq!(bits(T::from(f32::from_bits(above))), low + 1);
            }
        }
        assert_eq!(bits(T::from(f32::MAX)), infinity);
        assert_eq!(f32::from(make(infinity)), f32::INFINITY);
        assert!(f32::from(T::from(f32::NAN)).is_nan());
        assert!(f32::from(make(infinity + 1)).is_nan());
    }

    #[test]
    fn types_of_sixteen_bits_round_to_the_nearest() {
        check_rounding(F16, |value| value.0, 0x7c00);
        check_rounding(Bf16, |value| value.0, 0x7f80);
    }
}
