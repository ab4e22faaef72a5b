//! The calling conventions against the compiler, for both architectures: each parameter of
//! each function of `calls.h` is compiled into a store, and the store's source is its place.

use std::path::Path;
use std::process::Command;

use rscore::probes::{rows, Arch};

use crate::support::*;

/// (function, parameters as C) of every call, as the preprocessor sees them.
fn signatures() -> Vec<(String, Vec<String>)> {
    let sources = repository().join("tests/cstubs");
    let scratch = Scratch::new();
    let list = scratch.path().join("list.c");
    std::fs::write(&list, "#define CALL(n, p, ...) @ n p\n#include \"calls.h\"\n").unwrap();
    let types = sources.join("types.h");
    let text =
        run(clang().args(["-E", "-P", "-include"]).arg(types).arg("-I").arg(&sources).arg(list));
    let mut found = Vec::new();
    for call in text.split('@').skip(1) {
        let (name, rest) = call.trim().split_once('(').unwrap();
        let parameters = rest.trim_end().strip_suffix(')').unwrap();
        let parameters = match parameters.trim() {
            "void" => vec![],
            list => list.split(',').map(|p| p.trim().to_owned()).collect(),
        };
        found.push((name.trim().to_owned(), parameters));
    }
    found
}

fn clang() -> Command {
    Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".into()))
}

fn name_of(parameter: &str) -> &str {
    parameter.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
}

/// One function per parameter, named `function.index` in the assembly.
fn source_of(signatures: &[(String, Vec<String>)]) -> String {
    let mut source = String::from("#include \"types.h\"\n");
    for (function, parameters) in signatures {
        for (index, parameter) in parameters.iter().enumerate() {
            let (name, list) = (name_of(parameter), parameters.join(", "));
            let value = match parameter.starts_with("ncclUniqueId") && !parameter.contains('*') {
                true => format!("*(const unsigned long *)&{name}"),
                false => name.to_owned(),
            };
            source.push_str(&format!(
                "extern __typeof__({}) volatile sink_{function}_{index};\n\
                 void {function}_at_{index}({list}) {{ sink_{function}_{index} = {value}; }}\n",
                if value == name {
                    parameter[..parameter.rfind(name).unwrap()].replace("const ", "")
                } else {
                    "unsigned long".into()
                },
            ));
        }
    }
    source
}

fn assembly(target: &str, source: &Path) -> String {
    let sources = repository().join("tests/cstubs");
    let target = format!("--target={target}");
    let mut command = clang();
    command.args([&target, "-O1", "-S", "-ffreestanding", "-fno-pic", "-w", "-o", "-", "-I"]);
    run(command.arg(sources).arg(source))
}

/// Instructions of one function.
fn body<'a>(assembly: &'a str, function: &str) -> Vec<Vec<&'a str>> {
    let label = format!("{function}:");
    let lines =
        assembly.lines().skip_while(|l| l.split_whitespace().next() != Some(&label)).skip(1);
    let code = lines.take_while(|l| !l.contains("ret")).map(str::trim);
    let code = code.filter(|l| !l.starts_with(['.', '/', '#']) && !l.is_empty());
    code.map(|l| l.splitn(2, char::is_whitespace).map(str::trim).collect()).collect()
}

/// `arg2:32`, `sp[8]:64`, `arg2[0]:64`: the place that a function's only store takes.
fn place_aarch64(code: &[Vec<&str>]) -> String {
    let store = code.iter().rfind(|i| i[0] == "str").unwrap_or_else(|| panic!("{code:?}"));
    let source = store[1].split(',').next().unwrap();
    let bits = if source.starts_with('w') { 32 } else { 64 };
    let load = code.iter().find(|i| i[0] == "ldr" && i[1].split(',').next() == Some(source));
    let Some(load) = load else { return format!("arg{}:{bits}", &source[1..]) };
    let address = load[1].split_once('[').unwrap().1.trim_end_matches(']');
    let (base, offset) = address.split_once(", #").unwrap_or((address, "0"));
    let base = if base == "sp" { base.to_owned() } else { format!("arg{}", &base[1..]) };
    format!("{base}[{offset}]:{bits}")
}

fn place_x86(code: &[Vec<&str>]) -> String {
    let register = |name: &str| {
        const ORDER: [[&str; 2]; 6] = [
            ["rdi", "edi"],
            ["rsi", "esi"],
            ["rdx", "edx"],
            ["rcx", "ecx"],
            ["r8", "r8d"],
            ["r9", "r9d"],
        ];
        ORDER.iter().position(|names| names.contains(&name.trim_start_matches('%')))
    };
    let store = code.last().unwrap();
    let bits = if store[0] == "movl" { 32 } else { 64 };
    let source = store[1].split(',').next().unwrap();
    let load = code[..code.len() - 1].iter().find(|i| i[1].split(", ").nth(1) == Some(source));
    let Some(load) = load else { return format!("arg{}:{bits}", register(source).unwrap()) };
    let (offset, base) = load[1].split_once('(').unwrap();
    assert!(base.starts_with("%rsp)"), "{code:?}");
    format!("sp[{}]:{bits}", if offset.is_empty() { "0" } else { offset })
}

fn compare(arch: Arch, target: &str, place: impl Fn(&[Vec<&str>]) -> String) {
    let scratch = Scratch::new();
    let source = scratch.path().join("places.c");
    let signatures = signatures();
    std::fs::write(&source, source_of(&signatures)).unwrap();
    let assembly = assembly(target, &source);
    let mut compared = 0;
    for (function, parameters) in &signatures {
        let row = rows().iter().find(|r| r.symbol == function).unwrap();
        assert_eq!(row.arguments(), parameters.len(), "{function}");
        for index in 0..parameters.len() {
            let expected = place(&body(&assembly, &format!("{function}_at_{index}")));
            let derived = row.argument(arch, index).unwrap().to_string();
            let derived = derived.replace(":u", ":").replace(":i", ":");
            assert_eq!(derived, expected, "{function}, argument {index}");
            compared += 1;
        }
    }
    assert_eq!(signatures.len(), rows().iter().filter(|r| r.symbol.starts_with("nccl")).count());
    println!("{target}: {compared} arguments of {} functions agree", signatures.len());
}

#[test]
fn places_agree_with_the_compiler_on_aarch64() {
    compare(Arch::Aarch64, "aarch64-linux-gnu", place_aarch64);
}

#[test]
fn places_agree_with_the_compiler_on_x86_64() {
    compare(Arch::X86_64, "x86_64-linux-gnu", place_x86);
}
