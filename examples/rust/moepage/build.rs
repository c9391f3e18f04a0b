//! Lets this crate's tests and examples find libmoepage when they run. A program that depends on the
//! crate says for itself where the library will be: installed, or in its own rpath.
use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_MOEPAGE_LIB_DIR");
    if let Ok(folder) = env::var("DEP_MOEPAGE_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
