//! Points before and after each durable step of a node, at which a process can be told to
//! end at once: `HOLDFAST_CRASH=NAME`, or `NAME:3` for the third time that it is passed.
//! No program that is shipped has the feature `planted`: there
//! [`crash_point!`](crate::crash_point!) is nothing, and no point has a name.

#[cfg(feature = "planted")]
mod points;

#[cfg(feature = "planted")]
pub use points::{Point, STEPS, Side, Step, Steps, VARIABLE, pass};

/// The durable steps that one write makes: none of them has a name in this build.
#[cfg(not(feature = "planted"))]
#[derive(Debug)]
pub struct Steps;

#[cfg(not(feature = "planted"))]
impl Steps {
    /// Passes the points before them: there are none.
    pub fn before(&self) {}

    /// Passes the points after them: there are none.
    pub fn after(&self) {}
}

/// From now on, `passed` is told whenever this thread passes the point of this name, and
/// the process does not end at any.
///
/// # Errors
/// There is no such point, or this build has none.
pub fn observe(name: &str, passed: impl Fn() + 'static) -> Result<(), String> {
    #[cfg(feature = "planted")]
    return points::observe(name, passed);
    #[cfg(not(feature = "planted"))]
    {
        drop(passed);
        Err(format!(
            "{name:?} cannot be looked at: this build has no crash points; make it with --features holdfast-api/planted"
        ))
    }
}

/// A point before or after a durable step: `crash_point!(before Vote)`.
#[cfg(feature = "planted")]
#[macro_export]
macro_rules! crash_point {
    (before $step:ident) => {
        $crate::crash::pass($crate::crash::Step::$step.before())
    };
    (after $step:ident) => {
        $crate::crash::pass($crate::crash::Step::$step.after())
    };
}

/// A point before or after a durable step: nothing in this build.
#[cfg(not(feature = "planted"))]
#[macro_export]
macro_rules! crash_point {
    ($side:ident $step:ident) => {};
}

/// The [`Steps`] of operations that are written together:
/// `crash_steps!(operations, Operation::Vote(_) => Vote, …)`.
#[cfg(feature = "planted")]
#[macro_export]
macro_rules! crash_steps {
    ($operations:expr, $($pattern:pat => $step:ident),* $(,)?) => {
        $crate::crash::Steps::of($operations.iter().map(|operation| match operation {
            $($pattern => $crate::crash::Step::$step,)*
        }))
    };
}

/// The steps of operations that are written together: not looked at in this build.
#[cfg(not(feature = "planted"))]
#[macro_export]
macro_rules! crash_steps {
    ($operations:expr, $($pattern:pat => $step:ident),* $(,)?) => {
        $crate::crash::Steps
    };
}
