//! Compiles `bpf/collectives.bpf.c` with clang into `OUT_DIR/collectives.bpf.o`.
//!
//! `STRAG_BPF_OBJ` names a prebuilt object instead, for packagers without clang.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap()).join("collectives.bpf.o");
    println!("cargo:rerun-if-env-changed=STRAG_BPF_OBJ");
    println!("cargo:rerun-if-env-changed=CLANG");
    for file in ["collectives.bpf.c", "events.h", "registers.h", "site.h"] {
        println!("cargo:rerun-if-changed={}", root.join(file).display());
    }
    if let Ok(prebuilt) = env::var("STRAG_BPF_OBJ") {
        std::fs::copy(&prebuilt, &out).unwrap_or_else(|e| panic!("STRAG_BPF_OBJ={prebuilt}: {e}"));
        return;
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").unwrap().as_str() {
        "aarch64" => "arm64",
        _ => "x86",
    };
    let mut command = Command::new(&clang);
    command
        .args(["-g", "-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .args(include_paths())
        .arg("-I")
        .arg(&root)
        .arg("-c")
        .arg(root.join("collectives.bpf.c"))
        .arg("-o")
        .arg(&out);
    let status = command.status().unwrap_or_else(|e| {
        panic!("cannot run {clang} ({e}): install clang, or set STRAG_BPF_OBJ")
    });
    assert!(status.success(), "{clang} could not compile bpf/collectives.bpf.c");
}

/// Where libbpf's and the C library's headers are: libbpf-sys exports its vendored copy to its
/// direct dependants; `asm/types.h` lies in a multiarch folder that the BPF target does not
/// search, and any architecture's will do, since only integer types are taken from it.
fn include_paths() -> Vec<String> {
    let mut paths = Vec::new();
    if let Ok(include) = env::var("DEP_BPF_INCLUDE") {
        paths.push(format!("-I{include}"));
    }
    let target = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    for arch in [target.as_str(), "x86_64", "aarch64"] {
        let folder = format!("/usr/include/{arch}-linux-gnu");
        if PathBuf::from(&folder).join("asm/types.h").exists() {
            paths.push(format!("-I{folder}"));
            break;
        }
    }
    paths
}
