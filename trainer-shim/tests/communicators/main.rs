//! Communicators of the ring: what they compute, and what its members see when
//! one of them dies, aborts, hangs or closes. Members are threads here, and
//! processes that are killed in `processes`.

mod collectives;
mod lifecycle;
mod members;
mod processes;
