//! NCCL's C interface: the part of it that is used, as `nccl.h` of 2.28 has it.
//!
//! Result codes are integers here. A newer library returns codes that this
//! crate has no name for, and a Rust enum must never hold one.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

/// Bytes of a unique id.
pub const UNIQUE_ID_BYTES: usize = 128;

/// Value of an unset field in `NCCL_CONFIG_INITIALIZER`.
const UNDEFINED: c_int = c_int::MIN;

/// Mark of the struct in `NCCL_CONFIG_INITIALIZER`.
const MAGIC: c_uint = 0xcafe_beef;

/// The version whose layout [`Config`] has. The library ignores fields that are
/// newer than it, and gives defaults to those that this layout lacks.
const LAYOUT: c_uint = 22_800;

/// `ncclUniqueId`, which calls take by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawUniqueId {
    pub internal: [u8; UNIQUE_ID_BYTES],
}

/// Target of `ncclComm_t`; opaque.
#[repr(C)]
pub struct RawCommunicator {
    opaque: [u8; 0],
}

/// `ncclConfig_t` in the layout of 2.28. Later versions only append fields, and
/// read no more than `size` bytes.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
}

const _: () = {
    assert!(size_of::<Config>() == 80);
    assert!(std::mem::offset_of!(Config, magic) == 8);
    assert!(std::mem::offset_of!(Config, version) == 12);
    assert!(std::mem::offset_of!(Config, blocking) == 16);
    assert!(std::mem::offset_of!(Config, net_name) == 32);
    assert!(std::mem::offset_of!(Config, split_share) == 40);
    assert!(std::mem::offset_of!(Config, comm_name) == 48);
    assert!(std::mem::offset_of!(Config, nvlink_centric_sched) == 76);
    assert!(size_of::<RawUniqueId>() == UNIQUE_ID_BYTES);
};

impl Config {
    /// Config of a communicator whose calls return at once. NCCL keeps the
    /// pointer: the name must be valid as long as the communicator.
    pub fn non_blocking(name: &CStr) -> Config {
        Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: LAYOUT,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: name.as_ptr(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
        }
    }
}

type Comm = *mut RawCommunicator;
type Stream = *mut c_void;
type OnCommunicator = unsafe extern "C" fn(Comm) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Comm, c_int, RawUniqueId, c_int, *mut Config) -> c_int;

/// The functions of a library. Optional are those that older accepted versions
/// lack.
pub struct Symbols {
    pub get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub get_unique_id: unsafe extern "C" fn(*mut RawUniqueId) -> c_int,
    pub init_rank: InitRank,
    pub async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub abort: OnCommunicator,
    pub finalize: OnCommunicator,
    pub destroy: OnCommunicator,
    pub all_reduce: AllReduce,
    pub broadcast: AllReduce,
    pub group_start: unsafe extern "C" fn() -> c_int,
    pub group_end: unsafe extern "C" fn() -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    pub revoke: Option<unsafe extern "C" fn(Comm, c_int) -> c_int>,
    pub has_shrink: bool,
    pub has_grow: bool,
    pub has_scalable: bool,
}

impl Symbols {
    /// Finds them, or says which one is missing.
    ///
    /// # Safety
    ///
    /// A symbol of the library that has the name of an NCCL function must be
    /// that function.
    pub unsafe fn resolve(library: &Library) -> Result<Symbols, &'static str> {
        // SAFETY: the caller promises that these names are NCCL's functions, and
        // the types above are those of its header.
        unsafe {
            Ok(Symbols {
                get_version: required(library, "ncclGetVersion")?,
                get_unique_id: required(library, "ncclGetUniqueId")?,
                init_rank: required(library, "ncclCommInitRankConfig")?,
                async_error: required(library, "ncclCommGetAsyncError")?,
                abort: required(library, "ncclCommAbort")?,
                finalize: required(library, "ncclCommFinalize")?,
                destroy: required(library, "ncclCommDestroy")?,
                all_reduce: required(library, "ncclAllReduce")?,
                broadcast: required(library, "ncclBroadcast")?,
                group_start: required(library, "ncclGroupStart")?,
                group_end: required(library, "ncclGroupEnd")?,
                error_string: required(library, "ncclGetErrorString")?,
                last_error: required(library, "ncclGetLastError")?,
                revoke: find(library, "ncclCommRevoke"),
                has_shrink: find::<OnCommunicator>(library, "ncclCommShrink").is_some(),
                has_grow: find::<OnCommunicator>(library, "ncclCommGrow").is_some(),
                has_scalable: find::<OnCommunicator>(library, "ncclCommInitRankScalable").is_some(),
            })
        }
    }
}

/// The version function of a library; `None` if it is not NCCL.
///
/// # Safety
///
/// A symbol of that name must be NCCL's function.
pub unsafe fn find_get_version(
    library: &Library,
) -> Option<unsafe extern "C" fn(*mut c_int) -> c_int> {
    // SAFETY: the caller promises that the name is NCCL's function.
    unsafe { find(library, "ncclGetVersion") }
}

/// # Safety
///
/// `F` must be the type of the function that has this name.
unsafe fn required<F: Copy>(library: &Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: handed on to the caller.
    unsafe { find(library, name) }.ok_or(name)
}

/// # Safety
///
/// `F` must be the type of the function that has this name.
unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Option<F> {
    // SAFETY: `Option<F>` of a function pointer is a pointer that may be null,
    // as what the loader returns may be; that it is an `F` the caller promises.
    unsafe { library.get::<Option<F>>(name) }.ok().and_then(|found| *found)
}
