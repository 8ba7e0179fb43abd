//! Exports this program's `getrandom` to lookups by name at run time, as the crate of
//! that name does.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo::rerun-if-changed=build.rs");
}
