//! Shows this program's `getrandom` to whoever looks for it by name while the
//! program runs, as the crate of that name does.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo::rerun-if-changed=build.rs");
}
