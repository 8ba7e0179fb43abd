#!/usr/bin/env python3
"""Makes the image holdfast:local of this machine's own programs and libraries, without a registry.

    tests/docker/local_image.py --binaries target/debug

It holds what the image of store/Dockerfile holds, under the same paths and the same user. What it
does not show is that the Dockerfile builds.
"""
import argparse
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

IMAGE = "holdfast:local"
PROGRAMS = ("holdfast-store", "holdfast", "holdfast-agent")
# Health checks and people call these.
TOOLS = ("bash", "id", "cat", "ls")
USER = 10001
CHANGES = (
    f"USER {USER}:{USER}",
    "VOLUME /data",
    "ENV PATH=/usr/local/bin:/usr/bin:/bin",
    "EXPOSE 21001 29500",
    'CMD ["holdfast-store", "--help"]',
)


def libraries(program: pathlib.Path) -> set[pathlib.Path]:
    """The shared libraries of a program, with the one that loads them."""
    listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def contents(binaries: pathlib.Path) -> dict[str, pathlib.Path]:
    """Each file of the image, by its path there."""
    files = {f"usr/local/bin/{name}": binaries / name for name in PROGRAMS}
    files |= {f"bin/{name}": pathlib.Path(shutil.which(name)) for name in TOOLS}
    for path in [path for program in files.values() for path in libraries(program)]:
        files[str(path).lstrip("/")] = path
    return files


def write(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    archive.addfile(entry, io.BytesIO(text.encode()))


def folder(archive: tarfile.TarFile, name: str, mode: int, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    archive.addfile(entry)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=pathlib.Path, required=True, help="the folder of the programs")
    binaries = parser.parse_args().binaries
    changes = [argument for change in CHANGES for argument in ("--change", change)]
    importing = subprocess.Popen(["docker", "import", *changes, "-", IMAGE], stdin=subprocess.PIPE)
    with tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
        folder(archive, "tmp", 0o1777)
        folder(archive, "data", 0o750, USER)
        write(archive, "etc/passwd", f"root:x:0:0::/:/bin/bash\nholdfast:x:{USER}:{USER}::/data:/bin/false\n")
        write(archive, "etc/group", f"root:x:0:\nholdfast:x:{USER}:\n")
        for name, path in contents(binaries).items():
            entry = archive.gettarinfo(path.resolve(), name)
            entry.uid = entry.gid = 0
            with path.open("rb") as file:
                archive.addfile(entry, file)
    importing.stdin.close()
    return importing.wait()


if __name__ == "__main__":
    sys.exit(main())
