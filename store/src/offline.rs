//! Commands on a data folder while no node uses it.
//!
//! | module | does |
//! | --- | --- |
//! | [`inspect`] | shows what a folder holds |
//! | [`recover`] | makes a backup of what one surviving folder holds |
//! | [`restore`] | makes the folder of a node of a new cluster, from a backup |

pub mod inspect;
pub mod recover;
pub mod restore;
