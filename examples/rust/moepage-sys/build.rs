//! Finds libmoepage: where MOEPAGE_LIB_DIR says, else where pkg-config says, else in the source tree
//! that this crate is part of. Dependents read the folder, if it is not the linker's own, from
//! DEP_MOEPAGE_LIB_DIR.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=MOEPAGE_LIB_DIR");
    println!("cargo:rustc-link-lib=dylib=moepage");
    let found = from_environment().or_else(installed).or_else(in_source_tree);
    if let Some(folder) = found.filter(|folder| !folder.as_os_str().is_empty()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:lib_dir={}", folder.display());
    }
}

fn from_environment() -> Option<PathBuf> {
    let given = env::var_os("MOEPAGE_LIB_DIR")?;
    let folder = std::fs::canonicalize(&given)
        .unwrap_or_else(|error| panic!("MOEPAGE_LIB_DIR is {given:?}: {error}"));
    Some(folder)
}

/// An installed library in one of the linker's own folders is an empty path.
fn installed() -> Option<PathBuf> {
    let asked = Command::new("pkg-config").args(["--libs-only-L", "moepage"]).output().ok()?;
    let flags = String::from_utf8(asked.stdout).ok()?;
    let folder = flags.split_whitespace().next().unwrap_or("").trim_start_matches("-L");
    asked.status.success().then(|| PathBuf::from(folder))
}

fn in_source_tree() -> Option<PathBuf> {
    let folder = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../../../lib");
    let built = folder.join("libmoepage.so").exists();
    if built {
        return std::fs::canonicalize(folder).ok();
    }
    panic!("libmoepage is not installed, and not built here: run make, or set MOEPAGE_LIB_DIR")
}
