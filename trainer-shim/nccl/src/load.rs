//! Finds the library and takes it into use.
#![expect(unsafe_code, reason = "a C library is loaded, and called through pointers")]

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_LAZY};

use crate::codes::ResultCode;
use crate::environment;
use crate::error::{Attempt, Failure, LoadError, NcclError};
use crate::sys::{RawCommunicator, RawUniqueId, Symbols, UNIQUE_ID_BYTES, find_get_version};
use crate::unique_id::UniqueId;
use crate::version::{Capabilities, MINIMUM, Version};

/// Names that are asked for without a path. Wheels have the first one only.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Longest text that is taken from NCCL: the size of its buffer.
const TEXT_BYTES_MAX: usize = 1_024;

/// A loaded library. Cheap to clone; it stays loaded until the process ends,
/// since NCCL has threads of its own in it.
#[derive(Clone)]
pub struct Nccl {
    inner: Arc<Inner>,
}

struct Inner {
    symbols: Symbols,
    version: Version,
    capabilities: Capabilities,
    path: PathBuf,
    /// Never unloaded: the symbols point into it, and so do NCCL's threads.
    _library: ManuallyDrop<Library>,
}

impl Nccl {
    /// Takes the library that this process has already loaded, if there is one,
    /// so that there are never two. Else the configured path: the argument, or
    /// the one in `HOLDFAST_NCCL_LIBRARY`. Else `libnccl.so.2` or `libnccl.so`,
    /// where the system finds them.
    ///
    /// A file that is loaded runs code of its own: a user that may name it may
    /// run anything in this process, as with `LD_LIBRARY_PATH`.
    pub fn load(configured: Option<&Path>) -> Result<Nccl, LoadError> {
        refuse_comm_id()?;
        let mut tried = Vec::new();
        match already_loaded() {
            Some(library) => return accept(library, NAMES[0]),
            None => tried.push(Attempt {
                what: NAMES[0].to_owned(),
                why: "not loaded in this process yet".to_owned(),
            }),
        }
        let named = std::env::var_os(environment::LIBRARY).filter(|named| !named.is_empty());
        let configured = configured.map(Path::to_owned).or(named.map(PathBuf::from));
        // A configured path is final: nothing else takes its place.
        let candidates: Vec<&OsStr> = match &configured {
            Some(path) => vec![path.as_os_str()],
            None => NAMES.map(OsStr::new).to_vec(),
        };
        for candidate in candidates {
            let name = candidate.to_string_lossy();
            // SAFETY: this runs the initialisers of the file. The user who
            // configures the path answers for loading it; NCCL's have no
            // conditions.
            match unsafe { Library::new(candidate) } {
                Ok(library) => return accept(library, &name),
                Err(error) => {
                    // The reason is only in the source.
                    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    tried.push(Attempt { what: name.into_owned(), why });
                }
            }
        }
        Err(LoadError::Missing { tried })
    }

    /// Version of the library.
    pub fn version(&self) -> Version {
        self.inner.version
    }

    /// Optional functions of the library.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// The file that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Mints an id in this process, which from now on has a thread and a
    /// descriptor more, until the id is used up: NCCL cannot take one back. A
    /// [`Minter`](crate::minter::Minter) does it in a process that can be killed.
    pub fn mint(&self) -> Result<UniqueId, NcclError> {
        refuse_comm_id().map_err(NcclError::CommIdSet)?;
        let mut raw = RawUniqueId { internal: [0; UNIQUE_ID_BYTES] };
        // SAFETY: the pointer is to an id that the function may write.
        let code = unsafe { (self.symbols().get_unique_id)(&mut raw) };
        self.check("ncclGetUniqueId", code)?;
        // The first call reads NCCL's configuration file into the environment.
        refuse_comm_id().map_err(NcclError::CommIdSet)?;
        Ok(UniqueId::from_bytes(raw.internal))
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.inner.symbols
    }

    /// The code of a call, as a result.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<ResultCode, Failure> {
        let code = ResultCode(code);
        if code.is_accepted() { Ok(code) } else { Err(self.failure(call, code)) }
    }

    /// A failed call, with NCCL's own words, which the next one replaces.
    pub(crate) fn failure(&self, call: &'static str, code: ResultCode) -> Failure {
        // SAFETY: it takes any number, and returns a constant string.
        let text = unsafe { text((self.symbols().error_string)(code.0)) };
        // SAFETY: it ignores its argument, and returns a static buffer.
        let detail = unsafe {
            text_of_last_error((self.symbols().last_error)(std::ptr::null_mut::<RawCommunicator>()))
        };
        Failure { call, code, text, detail }
    }
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { version, path, .. } = self.inner.as_ref();
        f.debug_struct("Nccl").field("version", version).field("path", path).finish_non_exhaustive()
    }
}

/// All ids are equal where this variable is set.
pub(crate) fn refuse_comm_id() -> Result<(), LoadError> {
    match environment::comm_id() {
        Some(value) => Err(LoadError::CommIdSet { value }),
        None => Ok(()),
    }
}

/// The library under which PyTorch or another part of this process runs.
fn already_loaded() -> Option<Library> {
    // SAFETY: nothing is loaded and nothing runs: this only finds what is there.
    let found = unsafe { UnixLibrary::open(Some(NAMES[0]), RTLD_LAZY | libc::RTLD_NOLOAD) };
    found.ok().map(Library::from)
}

fn accept(library: Library, name: &str) -> Result<Nccl, LoadError> {
    let library_name = || name.to_owned();
    // SAFETY: a library with a function of this name is taken for NCCL.
    let Some(get_version) = (unsafe { find_get_version(&library) }) else {
        return Err(LoadError::NotNccl { library: library_name(), symbol: "ncclGetVersion" });
    };
    let mut version: c_int = 0;
    // SAFETY: the pointer is to a number that the function may write.
    let code = ResultCode(unsafe { get_version(&mut version) });
    let version = match u32::try_from(version) {
        Ok(version) if code.is_accepted() => Version::from_code(version),
        _ => return Err(LoadError::NoVersion { library: library_name(), code }),
    };
    if version < MINIMUM {
        return Err(LoadError::TooOld { library: library_name(), found: version });
    }
    // SAFETY: it has reported a version of NCCL.
    let symbols = unsafe { Symbols::resolve(&library) }
        .map_err(|symbol| LoadError::Incomplete { library: library_name(), version, symbol })?;
    let supported = Capabilities::of(version);
    let capabilities = Capabilities {
        shrink: supported.shrink && symbols.has_shrink,
        revoke: supported.revoke && symbols.revoke.is_some(),
        grow: supported.grow && symbols.has_grow,
        scalable: supported.scalable && symbols.has_scalable,
    };
    let path = file_of(symbols.get_version as *const c_void).unwrap_or_else(|| name.into());
    let library = ManuallyDrop::new(library);
    let inner = Inner { symbols, version, capabilities, path, _library: library };
    Ok(Nccl { inner: Arc::new(inner) })
}

/// The file that a function was loaded from.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;

    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` takes any address and writes the struct; all zero bits are
    // a valid one (null pointers).
    let found = unsafe {
        if libc::dladdr(function, found.as_mut_ptr()) == 0 {
            return None;
        }
        found.assume_init()
    };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which is valid as long as the library, and
    // that is not unloaded while its caller holds it.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// # Safety
///
/// The pointer is null or to a constant string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the caller promises a string that nothing changes.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Copies the message byte by byte: another thread of NCCL may write a new one at
/// the same time, so that there must be no reference to it.
///
/// # Safety
///
/// The pointer is null or to a buffer with a NUL in it that is never freed.
unsafe fn text_of_last_error(buffer: *const c_char) -> String {
    let mut bytes = Vec::new();
    while !buffer.is_null() && bytes.len() < TEXT_BYTES_MAX {
        // SAFETY: no NUL was read before this byte, so it is part of the buffer.
        let byte = unsafe { buffer.add(bytes.len()).cast::<u8>().read_volatile() };
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
