//! Defects that `holdfast-chaos` and the simulator have to find, one at a time:
//! each is the product as it is, with one thing wrong. No program that is shipped
//! has the feature `planted`: there [`planted!`](crate::planted!) is `false`, and
//! no defect has a name.

/// The environment variable that names the defect of a process.
#[cfg(feature = "planted")]
pub const VARIABLE: &str = "HOLDFAST_PLANTED";

#[cfg(feature = "planted")]
mod defects;

#[cfg(feature = "planted")]
pub use defects::{DEFECTS, Defect, is, name, planted};

/// Plants a defect for the rest of the process, in the place of the one that the
/// environment names.
///
/// # Errors
/// There is no such defect, or another one is planted, or this build has none.
pub fn plant(name: &str) -> Result<(), String> {
    #[cfg(feature = "planted")]
    return defects::plant(name);
    #[cfg(not(feature = "planted"))]
    Err(format!(
        "{name:?} cannot be planted: this build has no defects; make it with --features holdfast-api/planted"
    ))
}

/// Whether this defect is planted in the process.
#[cfg(feature = "planted")]
#[macro_export]
macro_rules! planted {
    ($defect:ident) => {
        $crate::planted::is($crate::planted::Defect::$defect)
    };
}

/// Whether this defect is planted in the process: not in this build.
#[cfg(not(feature = "planted"))]
#[macro_export]
macro_rules! planted {
    ($defect:ident) => {
        false
    };
}
