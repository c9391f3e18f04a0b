//! Raw bindings of libmoepage's C interface (`moepage.h` and `moepage_cuda.h`, which document it).
//! The `moepage` crate wraps what `moepage.h` declares safely.
//!
//! A struct's `Default` is all zeros but for `struct_size`, which is what the library expects of
//! structs whose fields are left at their defaults:
//!
//! ```
//! let config = moepage_sys::moepage_device_config {
//!     budget_bytes: 64 << 20,
//!     ..Default::default()
//! };
//! assert_eq!(config.struct_size as usize, std::mem::size_of_val(&config));
//! ```
#![allow(non_camel_case_types)]

/// Checks a struct's size when this crate is compiled, and gives it its `Default`.
macro_rules! plain {
    ($name:ident, $size:literal $(, $struct_size:ident)?) => {
        const _: () = assert!(std::mem::size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, floats, raw pointers, and `Option`s of function pointers: all
                // of them are valid as zeros.
                #[allow(unused_mut)]
                let mut zeros: Self = unsafe { std::mem::zeroed() };
                $( zeros.$struct_size = $size; )?
                zeros
            }
        }
    };
}

#[rustfmt::skip]
mod bindings;
pub use bindings::*;
