//! State of a process of the command that only its memory shows: the variables
//! that it has set itself, and whether it waits within PyTorch.
//!
//! `/proc/PID/environ` shows variables as a process was started. Those that a
//! program sets itself are where `environ` points to: the C library's, or that of an
//! executable that was linked with a copy of it, as Debian's Python is.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most bytes read of a process's table of mappings.
const MAPS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most bytes read of a table of connections.
const TABLE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The state of a listening socket in such a table.
const LISTENS: &str = "0A";
/// Most bytes read of an executable or a C library.
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

/// The type of an ELF file whose addresses are those of its memory.
const EXECUTABLE_IN_PLACE: usize = 2;

/// Where executables and C libraries keep `environ`, by file.
#[derive(Debug, Default)]
pub struct Libraries(HashMap<PathBuf, Option<Place>>);

/// A place in the memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    At(u64),
    /// So far behind the beginning of its file.
    Behind(u64),
}

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
        text.contains(PYTORCH).then(|| Program::with(folder, &text))?
    }

    fn with(folder: PathBuf, maps: &str) -> Option<Program> {
        let maps = maps.lines().filter_map(mapping).collect();
        let memory = File::open(folder.join("mem")).ok()?;
        Some(Program { folder, maps, memory })
    }

    /// The current values of these variables. `None` if they are unknown.
    pub fn variables<const N: usize>(
        &self,
        names: [&str; N],
        libraries: &mut Libraries,
    ) -> Option<[Option<String>; N]> {
        let begins = |mapping: &&Mapping| mapping.offset == 0;
        let executable = std::fs::read_link(self.folder.join("exe")).ok();
        let is_executable =
            |mapping: &&Mapping| executable.as_deref() == Some(mapping.path.as_ref());
        let of_libc = |mapping: &&Mapping| {
            let file = mapping.path.rsplit('/').next().unwrap_or_default();
            file == "libc.so.6" || file.starts_with("ld-musl-")
        };
        let beginnings = || self.maps.iter().filter(begins);
        // In the order in which the linker looks: all use the first.
        let files = [beginnings().find(is_executable), beginnings().find(of_libc)];
        let at = files.into_iter().flatten().find_map(|file| self.environ_of(file, libraries))?;
        let table = self.word(at)?;
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

    /// Where a file that begins at this mapping keeps `environ`, if it does.
    fn environ_of(&self, file: &Mapping, libraries: &mut Libraries) -> Option<u64> {
        let path = self.folder.join("root").join(file.path.trim_start_matches('/'));
        // The same file for all processes, unless they are in containers.
        let place = *libraries.0.entry(PathBuf::from(&file.path)).or_insert_with(|| {
            let mut bytes = Vec::new();
            File::open(path).ok()?.take(LIBRARY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
            symbol(&bytes, b"environ")
        });
        match place? {
            Place::At(address) => Some(address),
            Place::Behind(distance) => file.from.checked_add(distance),
        }
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

    /// How many of its threads are a server of PyTorch's TCPStore.
    pub fn stores_served(&self) -> usize {
        let threads = std::fs::read_dir(self.folder.join("task")).into_iter().flatten().flatten();
        let names = threads.filter_map(|one| std::fs::read_to_string(one.path().join("comm")).ok());
        names.filter(|name| name.starts_with("pt_tcpstore")).count()
    }

    /// The ports at which it listens; none if they cannot be read.
    pub fn ports(&self) -> BTreeSet<u16> {
        let files = std::fs::read_dir(self.folder.join("fd")).into_iter().flatten().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let sockets: BTreeSet<String> = links
            .filter_map(|link| {
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                Some(inode.to_owned())
            })
            .collect();
        let mut ports = BTreeSet::new();
        for table in ["net/tcp", "net/tcp6"] {
            let Ok(table) = File::open(self.folder.join(table)) else { continue };
            let lines = BufReader::new(table.take(TABLE_BYTES_MAX)).lines().map_while(Result::ok);
            let listening = lines.filter_map(|line| listening(&line));
            ports.extend(
                listening.filter(|(_, inode)| sockets.contains(inode)).map(|(port, _)| port),
            );
        }
        ports
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

/// The port of a line of `/proc/net/tcp`, and the number of its socket, if that listens.
fn listening(line: &str) -> Option<(u16, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, LISTENS, _, _, _, _, _, inode, ..] = fields.as_slice() else { return None };
    let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
    Some((port, (*inode).to_owned()))
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
fn symbol(file: &[u8], name: &[u8]) -> Option<Place> {
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
    let value = part(header)?.chunks_exact(SYMBOL_BYTES).find_map(|symbol| {
        let from = names.get(place(half_at(symbol, 0)?.into())?..)?;
        let is_it = from.strip_prefix(name)?.first() == Some(&0);
        // Of a symbol that it uses and does not have it is 0.
        number_at(symbol, 8).filter(|at| is_it && *at > 0)
    })?;
    match short_at(file, 16)? {
        EXECUTABLE_IN_PLACE => Some(Place::At(value)),
        _ => Some(Place::Behind(value)),
    }
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
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_ports_at_which_a_process_listens_are_found() {
        let line = "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0 \
                    0 4711 1 0000000000000000 100 0 0 10 0";
        assert_eq!(listening(line), Some((29_500, "4711".to_owned())));
        let line = line.replace(" 0A ", " 01 ");
        assert_eq!(listening(&line), None, "it is connected");
        let sockets = [("127.0.0.1", 0), ("::1", 0)].map(std::net::TcpListener::bind);
        let sockets = sockets.map(|socket| socket.unwrap());
        let own = Program::with(PathBuf::from("/proc/self"), "").unwrap();
        for socket in sockets {
            let port = socket.local_addr().unwrap().port();
            assert!(own.ports().contains(&port));
            drop(socket);
            assert!(!own.ports().contains(&port));
        }
    }

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
    fn variables_are_found_wherever_the_executable_was_linked_to_keep_them() {
        let source = "#include <stdio.h>\n#include <stdlib.h>\nextern char **environ;\n\
                      int main(void) { setenv(\"SET_LATER\", \"yes\", 1); \
                      puts(environ[0] ? \"set\" : \"\"); fflush(stdout); return getchar(); }\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program.c");
        std::fs::write(&file, source).unwrap();
        for how in [&["-no-pie"][..], &["-fPIE", "-pie"], &["-fPIC", "-pie"]] {
            let program = folder.path().join(how.concat());
            let compiled = Command::new("cc").args(how).arg(&file).arg("-o").arg(&program).status();
            assert!(compiled.unwrap().success(), "{how:?}");
            let started =
                Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut started = started.unwrap();
            let mut said = [0; 3];
            started.stdout.take().unwrap().read_exact(&mut said).unwrap();
            let place = Path::new("/proc").join(started.id().to_string());
            let maps = std::fs::read_to_string(place.join("maps")).unwrap();
            let found = Program::with(place, &maps).unwrap();
            let found = found.variables(["SET_LATER", "NEVER_SET"], &mut Libraries::default());
            // It ends when nobody writes to it any more.
            drop(started.stdin.take());
            started.wait().unwrap();
            assert_eq!(found, Some([Some("yes".to_owned()), None]), "{how:?}");
        }
    }

    #[test]
    fn a_process_without_pytorch_is_no_program() {
        assert!(Program::read(std::process::id()).is_none());
        assert!(Program::read(u32::MAX).is_none());
    }
}
