//! From a library's symbols to the sites that are probed in it.

use std::collections::HashSet;
use std::io;

use super::abi::Arch;
use super::instruction::{choose, PROLOGUE_BYTES};
use super::site::{Site, Spec};
use super::table::{rows_of, Kinds, Row, VIRTUAL_CONTEXT};
use crate::discover::elf::Symbol;

/// Addresses that one name may have (symbol versions); a file can claim any number.
const ADDRESSES_PER_SYMBOL: usize = 4;

/// What will be probed in a library, and what will not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub sites: Vec<Site>,
    /// (symbol, reason)
    pub refused: Vec<(String, String)>,
    /// Symbols of the table that this library does not have.
    pub missing: Vec<String>,
}

/// Every name to look for in a library of these kinds.
pub fn names(kinds: &Kinds) -> Vec<String> {
    let mut names = Vec::new();
    for (_, row) in rows_of(kinds) {
        names.push(row.symbol.to_owned());
        names.extend(row.twin());
    }
    if kinds.gloo {
        names.push(VIRTUAL_CONTEXT.to_owned());
    }
    names
}

/// Choose the sites of a library: `symbols` are those of [`names`] that it has, `code` reads
/// the file at an offset. With `allow_single_step` hot functions are probed even where the
/// kernel must single-step the instruction.
pub fn plan(
    kinds: &Kinds,
    symbols: &[Symbol],
    code: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    allow_single_step: bool,
) -> Plan {
    match Arch::native() {
        Some(arch) => plan_for(arch, kinds, symbols, code, allow_single_step),
        None => {
            let refuse = |n: String| (n, "no calling convention for this architecture".into());
            Plan { refused: names(kinds).into_iter().map(refuse).collect(), ..Plan::default() }
        }
    }
}

/// [`plan`] for a given architecture.
pub fn plan_for(
    arch: Arch,
    kinds: &Kinds,
    symbols: &[Symbol],
    code: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    allow_single_step: bool,
) -> Plan {
    let mut plan = Plan::default();
    let mut taken = HashSet::new();
    let virtual_context = symbols.iter().any(|s| s.name == VIRTUAL_CONTEXT);
    for (number, row) in rows_of(kinds) {
        let found = addresses(row, symbols);
        if found.is_empty() {
            plan.missing.push(row.symbol.to_owned());
        }
        for symbol in found {
            let site = row
                .spec(arch, number, virtual_context)
                .and_then(|spec| site(arch, row, spec, symbol, &code, allow_single_step));
            let refused = match site {
                // Two rows at one address are one function under two names (identical code
                // folding, ncclAllToAll beside ncclAlltoAll): one probe.
                Ok(site) if taken.insert(site.offset) => {
                    plan.sites.push(site);
                    continue;
                }
                Ok(_) => "another probed function has the same address".to_owned(),
                Err(reason) => reason,
            };
            plan.refused.push((symbol.name.clone(), refused));
        }
    }
    plan
}

/// The symbols of a row, one per address. The `p` twin counts only where the plain name is
/// absent: at another address it would be what the plain one calls.
fn addresses<'s>(row: &Row, symbols: &'s [Symbol]) -> Vec<&'s Symbol> {
    let named =
        |name: &str| -> Vec<&'s Symbol> { symbols.iter().filter(|s| s.name == name).collect() };
    let mut found = named(row.symbol);
    if found.is_empty() {
        found = row.twin().map(|twin| named(&twin)).unwrap_or_default();
    }
    let mut seen = HashSet::new();
    found.retain(|s| seen.insert(s.offset));
    found.truncate(ADDRESSES_PER_SYMBOL);
    found
}

fn site(
    arch: Arch,
    row: &Row,
    mut spec: Spec,
    symbol: &Symbol,
    code: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    allow_single_step: bool,
) -> Result<Site, String> {
    let mut bytes = [0u8; PROLOGUE_BYTES];
    let wanted = match symbol.size {
        0 => PROLOGUE_BYTES,
        size => PROLOGUE_BYTES.min(size as usize),
    };
    let got = code(symbol.offset, &mut bytes[..wanted])
        .map_err(|e| format!("cannot read its first bytes: {e}"))?;
    if got == 0 {
        return Err("its code lies outside the file".into());
    }
    let choice = choose(arch, &bytes[..got.min(wanted)], &spec);
    if choice.single_step && row.hot() && !allow_single_step {
        return Err("no instruction that the kernel emulates while the arguments are in place; \
                    each hit would be single-stepped (set allow_single_step to probe it)"
            .into());
    }
    for place in &mut spec.places {
        *place = place.after_push(choice.pushed);
    }
    let offset = symbol.offset.checked_add(choice.offset).ok_or("its offset overflows")?;
    Ok(Site { offset, symbol: symbol.name.clone(), single_step: choice.single_step, spec })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NCCL: Kinds = Kinds { nccl: true, rccl: false, gloo: false };

    fn symbol(name: &str, offset: u64) -> Symbol {
        Symbol { name: name.into(), value: offset, offset, size: 0 }
    }

    fn with_code(first: &'static [u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<usize> {
        move |_, buf| {
            let n = first.len().min(buf.len());
            buf[..n].copy_from_slice(&first[..n]);
            Ok(n)
        }
    }

    #[test]
    fn aliases_of_one_address_are_one_probe() {
        let symbols = [symbol("ncclSend", 64), symbol("pncclSend", 64), symbol("pncclRecv", 128)];
        let plan = plan_for(Arch::X86_64, &NCCL, &symbols, with_code(&[0x55]), false);
        let offsets: Vec<u64> = plan.sites.iter().map(|s| s.offset).collect();
        assert_eq!(offsets, [64, 128]);
        assert!(plan.refused.is_empty());
        assert!(plan.missing.iter().any(|m| m == "ncclAllReduce"));
        assert!(!plan.missing.iter().any(|m| m == "ncclRecv"));
    }

    #[test]
    fn hot_functions_are_not_single_stepped_unasked() {
        let symbols = [symbol("ncclSend", 64), symbol("ncclCommInitAll", 128)];
        let code = &[0xb8, 1, 0, 0, 0, 0xc3]; // mov eax, 1; ret
        let plan = plan_for(Arch::X86_64, &NCCL, &symbols, with_code(code), false);
        assert_eq!(plan.refused.len(), 1);
        assert!(plan.refused[0].1.contains("single-stepped"));
        assert_eq!(plan.sites.len(), 1);
        assert!(plan.sites[0].single_step);
        let plan = plan_for(Arch::X86_64, &NCCL, &symbols, with_code(code), true);
        assert_eq!(plan.sites.len(), 2);
    }

    #[test]
    fn unreadable_code_is_refused() {
        let symbols = [symbol("ncclSend", u64::MAX)];
        let fails = |_, _: &mut [u8]| Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        let plan = plan_for(Arch::X86_64, &NCCL, &symbols, fails, false);
        assert_eq!((plan.sites.len(), plan.refused.len()), (0, 1));
    }
}
