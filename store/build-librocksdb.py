#!/usr/bin/env python3
"""Builds librocksdb.a from the sources that the `librocksdb-sys` crate brings, as a unity build.

Why: header parsing dominates RocksDB's build. Compiling groups of files together takes about
a quarter of the CPU time of cargo's own build, from the same sources with the same defines.

Prints the folder to export as ROCKSDB_LIB_DIR (together with ROCKSDB_STATIC=1). Without
these variables cargo builds RocksDB itself: slower, same result. ROCKSDB_OPT_LEVEL (2) is for
builds that are soon thrown away: 1 takes two thirds of the time.

Usage: store/build-librocksdb.py [--out DIR] [--jobs N]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import subprocess
import sys

FILES_PER_UNIT = 24
SMALL_FOLDER_FILES = 12
OPT_LEVEL = os.environ.get("ROCKSDB_OPT_LEVEL", "2")
FLAGS = f"""-std=c++20 -O{OPT_LEVEL} -g0 -fPIC -w -include cstdint -DNDEBUG -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION
-DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT
-DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT""".split()
# Server processors have had them since 2010. Without them RocksDB computes checksums from tables.
if platform.machine() == "x86_64":
    FLAGS += ["-msse4.2", "-mpclmul"]


def crate() -> tuple[str, pathlib.Path]:
    """Version and source folder of librocksdb-sys in this workspace's lock file."""
    root = pathlib.Path(__file__).resolve().parent.parent
    meta = subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--locked"],
        cwd=root, check=True, stdout=subprocess.PIPE,
    )
    for package in json.loads(meta.stdout)["packages"]:
        if package["name"] == "librocksdb-sys":
            return package["version"], pathlib.Path(package["manifest_path"]).parent
    sys.exit("librocksdb-sys is not in Cargo.lock")


def units(source: pathlib.Path) -> list[tuple[str, list[pathlib.Path]]]:
    """Source files grouped by the top folder that they are in: neighbours share headers and do not clash."""
    folders: dict[str, list[str]] = {}
    for line in (source / "rocksdb_lib_sources.txt").read_text().split():
        if line != "util/build_version.cc":
            folders.setdefault(line.split("/")[0], []).append(line)
    # What parsing costs is the same for a folder of three files.
    small = [top for top, files in folders.items() if len(files) < SMALL_FOLDER_FILES]
    folders["small"] = [file for top in small for file in folders.pop(top)]
    groups = [("build_version", [source / "build_version.cc"])]
    for top, files in folders.items():
        parts = -(-len(files) // FILES_PER_UNIT)
        for part in range(parts):
            share = sorted(files)[part * len(files) // parts:(part + 1) * len(files) // parts]
            groups.append((f"{top}_{part}", [source / "rocksdb" / file for file in share]))
    return groups


def compile_unit(source, out, name, files) -> list[pathlib.Path]:
    """One object for the group, or one for each file if they do not go together."""
    compiler = os.environ.get("CXX", "g++")
    include = [f"-I{source}/rocksdb/include", f"-I{source}/rocksdb", f"-I{source}"]
    unit, target = out / f"{name}.cc", out / f"{name}.o"
    unit.write_text("".join(f'#include "{file}"\n' for file in files))
    done = subprocess.run([compiler, *FLAGS, *include, "-c", unit, "-o", target], stderr=subprocess.PIPE)
    if done.returncode == 0:
        return [target]
    if len(files) == 1:
        sys.exit(done.stderr.decode(errors="replace"))
    return [o for n, f in enumerate(files) for o in compile_unit(source, out, f"{name}_{n}", [f])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="folder for the archives (default: target/rocksdb)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="compilers at a time")
    args = parser.parse_args()
    if OPT_LEVEL not in ("0", "1", "2", "3"):
        sys.exit(f"ROCKSDB_OPT_LEVEL is {OPT_LEVEL!r}; set it to 0, 1, 2 or 3")
    version, source = crate()
    base = args.out or pathlib.Path(__file__).resolve().parent.parent / "target" / "rocksdb"
    out = base / (version if OPT_LEVEL == "2" else f"{version}-O{OPT_LEVEL}")
    archive = out / "librocksdb.a"
    if not archive.exists():
        out.mkdir(parents=True, exist_ok=True)
        groups = units(source)
        print(f"building RocksDB {version} once ({len(groups)} units, {args.jobs} jobs) into {out}", file=sys.stderr)
        objects: list[pathlib.Path] = []
        # The biggest groups first, so that no core idles at the end.
        groups.sort(key=lambda group: -sum(f.stat().st_size for f in group[1]))
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            tasks = [pool.submit(compile_unit, source, out, name, files) for name, files in groups]
            for count, task in enumerate(concurrent.futures.as_completed(tasks), 1):
                objects += task.result()
                print(f"  {count}/{len(groups)}", file=sys.stderr)
        unfinished = out / "librocksdb.a.unfinished"
        unfinished.unlink(missing_ok=True)
        subprocess.run(["ar", "qcs", unfinished, *sorted(objects)], check=True)
        unfinished.rename(archive)
        for object_file in objects:
            object_file.unlink()
    print(out)


if __name__ == "__main__":
    main()
