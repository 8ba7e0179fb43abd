//! State of a process of the command that only its memory shows: the variables
//! that it has set itself, and whether it waits within PyTorch.
//!
//! `/proc/PID/environ` shows variables as a process was started. Those that a
//! program sets itself are where the C library's `environ` points to.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most bytes read of a process's table of mappings.
const MAPS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most bytes read of a C library.
const LIBRARY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Variables that are looked at, and bytes of one.
const VARIABLES_MAX: usize = 4096;
const VARIABLE_BYTES_MAX: usize = 512;
/// Words of a stack that are looked at: the frames of a sleep, and of its caller.
const STACK_WORDS: usize = 64;
/// Bytes of a symbol in an ELF file of 64 bits.
const SYMBOL_BYTES: usize = 24;
/// The type of an ELF section with symbols for other files.
const DYNAMIC_SYMBOLS: u32 = 11;
/// The library that sleeps between two tries to connect.
const PYTORCH: &str = "/libtorch_cpu.so";
/// The system calls `nanosleep` and `clock_nanosleep`.
const SLEEPS: &[&str] = if cfg!(target_arch = "x86_64") { &["35", "230"] } else { &["101", "115"] };

/// Where C libraries keep `environ`, by file.
#[derive(Debug, Default)]
pub struct Libraries(HashMap<PathBuf, Option<u64>>);

/// A process that has loaded PyTorch.
#[derive(Debug)]
pub struct Program {
    folder: PathBuf,
    maps: Vec<Mapping>,
    memory: File,
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    from: u64,
    to: u64,
    is_code: bool,
    offset: u64,
    path: String,
}

impl Program {
    /// None if it has not loaded PyTorch, or may not be looked at.
    pub fn read(id: u32) -> Option<Program> {
        let folder = Path::new("/proc").join(id.to_string());
        let mut text = String::new();
        File::open(folder.join("maps"))
            .ok()?
            .take(MAPS_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()?;
        text.contains(PYTORCH).then_some(())?;
        let maps = text.lines().filter_map(mapping).collect();
        let memory = File::open(folder.join("mem")).ok()?;
        Some(Program { folder, maps, memory })
    }

    /// The current values of these variables. `None` if they are unknown.
    pub fn variables<const N: usize>(
        &self,
        names: [&str; N],
        libraries: &mut Libraries,
    ) -> Option<[Option<String>; N]> {
        let of_libc = |mapping: &&Mapping| {
            let file = mapping.path.rsplit('/').next().unwrap_or_default();
            mapping.offset == 0 && (file == "libc.so.6" || file.starts_with("ld-musl-"))
        };
        let libc = self.maps.iter().find(of_libc)?;
        let path = self.folder.join("root").join(libc.path.trim_start_matches('/'));
        // The same file for all processes, unless they are in containers.
        let key = PathBuf::from(&libc.path);
        let place = *libraries.0.entry(key).or_insert_with(|| {
            let mut bytes = Vec::new();
            File::open(path).ok()?.take(LIBRARY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
            symbol(&bytes, b"environ")
        });
        let table = self.word(libc.from.checked_add(place?)?)?;
        let mut found = [const { None }; N];
        for n in 0..VARIABLES_MAX as u64 {
            let at = self.word(table.checked_add(8 * n)?)?;
            if at == 0 {
                break;
            }
            let text = self.text(at);
            let Some((name, value)) = text.split_once('=') else { continue };
            if let Some(one) = names.iter().position(|wanted| *wanted == name) {
                found[one] = Some(value.to_owned());
            }
        }
        Some(found)
    }

    /// Whether its main thread sleeps in a function of PyTorch, as between two
    /// tries to connect.
    pub fn sleeps_in_pytorch(&self) -> bool {
        let call = std::fs::read_to_string(self.folder.join("syscall")).unwrap_or_default();
        let words: Vec<&str> = call.split_whitespace().collect();
        let [number, .., stack, _] = words.as_slice() else { return false };
        let stack = stack.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let Some(stack) = stack.filter(|_| SLEEPS.contains(number)) else { return false };
        let mut bytes = [0; 8 * STACK_WORDS];
        let read = self.memory.read_at(&mut bytes, stack).unwrap_or(0);
        let words = bytes[..read].chunks_exact(8).filter_map(|word| number_at(word, 0));
        let code_at = |word: u64| {
            let mut code = self.maps.iter().filter(|mapping| mapping.is_code);
            code.find(|code| (code.from..code.to).contains(&word))
        };
        // The caller of the C library: words after it may be stale.
        let of_libraries = |code: &&Mapping| {
            let file = code.path.rsplit('/').next().unwrap_or_default();
            !["libc.so", "ld-musl-", "libstdc++.so"].iter().any(|name| file.starts_with(name))
        };
        words
            .filter_map(code_at)
            .find(of_libraries)
            .is_some_and(|code| code.path.ends_with(PYTORCH))
    }

    /// Whether one of its threads is a server of PyTorch's TCPStore.
    pub fn serves_a_store(&self) -> bool {
        let threads = std::fs::read_dir(self.folder.join("task")).into_iter().flatten().flatten();
        let names = threads.filter_map(|one| std::fs::read_to_string(one.path().join("comm")).ok());
        names.into_iter().any(|name| name.starts_with("pt_tcpstore"))
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    fn text(&self, at: u64) -> String {
        let mut bytes = [0; VARIABLE_BYTES_MAX];
        let read = self.memory.read_at(&mut bytes, at).unwrap_or(0);
        let text = bytes[..read].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (from, to) = fields.next()?.split_once('-')?;
    let is_code = fields.next()?.contains('x');
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2)?.trim_start().to_owned();
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping { from: number(from)?, to: number(to)?, is_code, offset, path })
}

/// Where an ELF file of 64 bits has this symbol, from where it is loaded.
fn symbol(file: &[u8], name: &[u8]) -> Option<u64> {
    file.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let place = |value: u64| usize::try_from(value).ok();
    let sections = place(number_at(file, 40)?)?;
    let (size, count) = (short_at(file, 58)?, short_at(file, 60)?);
    let section = |n: usize| file.get(sections.checked_add(size.checked_mul(n)?)?..);
    let part = |section: &[u8]| {
        let from = place(number_at(section, 24)?)?;
        file.get(from..from.checked_add(place(number_at(section, 32)?)?)?)
    };
    let of_symbols = |n: usize| section(n).filter(|one| half_at(one, 4) == Some(DYNAMIC_SYMBOLS));
    let header = (0..count).find_map(of_symbols)?;
    let names = part(section(place(half_at(header, 40)?.into())?)?)?;
    part(header)?.chunks_exact(SYMBOL_BYTES).find_map(|symbol| {
        let from = names.get(place(half_at(symbol, 0)?.into())?..)?;
        let is_it = from.strip_prefix(name)?.first() == Some(&0);
        number_at(symbol, 8).filter(|at| is_it && *at > 0)
    })
}

fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn short_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_as_the_kernel_prints_them() {
        let line = "7f00-7fff r-xp 00001000 08:01 77    /usr/lib/lib torch.so";
        let read = mapping(line).unwrap();
        let path = "/usr/lib/lib torch.so".to_owned();
        let expected = Mapping { from: 0x7f00, to: 0x7fff, is_code: true, offset: 0x1000, path };
        assert_eq!(read, expected);
        assert_eq!(mapping("7f00-7fff rw-p 00000000 00:00 0 ").unwrap().path, "");
        for bad in ["", "7f00", "x-y r-xp 0 0 0 /a", "1-2 r-xp z 0 0 /a"] {
            assert_eq!(mapping(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_library_has_no_symbols() {
        let mut cut = b"\x7fELF\x02\x01".to_vec();
        cut.resize(64, 0xff);
        for file in [&b""[..], b"\x7fELF\x02\x01", &cut] {
            assert_eq!(symbol(file, b"environ"), None);
        }
    }

    #[test]
    fn a_process_without_pytorch_is_no_program() {
        assert!(Program::read(std::process::id()).is_none());
        assert!(Program::read(u32::MAX).is_none());
    }
}
