//! What this compiler makes of the structs and constants is what the C compiler makes of them.
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Tells one line per struct and field, as tests/abi/structs.sh prints them.
macro_rules! fields {
    ($tell:ident, $name:ident, $($field:ident),* $(,)?) => {{
        let whole = std::mem::MaybeUninit::<$name>::uninit();
        let start = whole.as_ptr();
        $tell(format!("struct {} {}", stringify!($name), std::mem::size_of::<$name>()));
        $(
            // SAFETY: the address of a field inside `whole`; nothing is read.
            let field = unsafe { std::ptr::addr_of!((*start).$field) };
            $tell(format!(
                "field {}.{} {} {}",
                stringify!($name),
                stringify!($field).trim_end_matches('_'),
                field as usize - start as usize,
                crate::size_of_target(field)
            ));
        )*
    }};
}

/// Tells the name and the value of each constant.
macro_rules! constants {
    ($tell:ident, $($name:ident),* $(,)?) => {{
        $($tell(stringify!($name), $name as i64);)*
    }};
}

fn size_of_target<T>(_: *const T) -> usize {
    std::mem::size_of::<T>()
}

#[rustfmt::skip]
mod table;

/// What the C compiler says, without the fields' C types.
fn c_layout() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let output =
        Command::new("sh").arg("tests/abi/structs.sh").current_dir(root).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .expect("the table is text")
        .lines()
        .map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" "))
        .collect()
}

fn of_kind(lines: &BTreeSet<String>, kinds: &[&str]) -> BTreeSet<String> {
    let kept = |line: &&String| kinds.iter().any(|kind| line.starts_with(kind));
    lines.iter().filter(kept).cloned().collect()
}

#[test]
fn structs_are_as_the_c_compiler_lays_them_out() {
    let mut ours = BTreeSet::new();
    table::structs(&mut |line| {
        ours.insert(line);
    });
    let theirs = of_kind(&c_layout(), &["struct ", "field "]);
    assert!(theirs.len() > 300);
    assert_eq!(ours, theirs);
}

#[test]
fn constants_have_their_values_in_c() {
    let mut ours = BTreeSet::new();
    table::constants(&mut |name, value| {
        ours.insert(format!("constant {name} {value}"));
    });
    assert_eq!(ours, of_kind(&c_layout(), &["constant "]));
}

#[test]
fn defaults_are_zeros_and_the_size() {
    let config = moepage_sys::moepage_device_config::default();
    assert_eq!(config.struct_size as usize, std::mem::size_of_val(&config));
    assert!(config.log.is_none() && config.log_user.is_null() && config.budget_bytes == 0);
}
