//! The structures shared with the BPF program, compared with the object's own type
//! information before an event is believed.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::{HasSize, Object};

use super::encode::{RawPlace, RawSite};
use super::error::Error;
use super::site::LINKS_MAX;
use crate::wire;

/// Twin of `struct stragd_counters`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawCounters {
    pub events: [u64; 32],
    pub lost: [u64; 32],
    pub read_failed: u64,
    pub ignored: u64,
    pub claim_full: u64,
    pub comm_full: u64,
    pub bad_site: u64,
    /// Used by the program itself.
    pub births: u64,
    pub duplicates: [u64; LINKS_MAX],
}

impl RawCounters {
    /// From the bytes of the map's value, which may be longer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Box<RawCounters>> {
        let mut words = bytes.chunks_exact(8).map(|c| c.try_into().map(u64::from_ne_bytes).ok());
        if bytes.len() < std::mem::size_of::<RawCounters>() {
            return None;
        }
        let mut take = || words.next().flatten().unwrap_or(0);
        let mut raw = Box::new(RawCounters {
            events: [0; 32],
            lost: [0; 32],
            read_failed: 0,
            ignored: 0,
            claim_full: 0,
            comm_full: 0,
            bad_site: 0,
            births: 0,
            duplicates: [0; LINKS_MAX],
        });
        raw.events.fill_with(&mut take);
        raw.lost.fill_with(&mut take);
        raw.read_failed = take();
        raw.ignored = take();
        raw.claim_full = take();
        raw.comm_full = take();
        raw.bad_site = take();
        raw.births = take();
        raw.duplicates.fill_with(&mut take);
        Some(raw)
    }
}

macro_rules! offsets {
    ($ty:ty: $($field:ident),+ $(,)?) => {
        &[$((stringify!($field), std::mem::offset_of!($ty, $field))),+]
    };
}

/// Compare every shared structure with the object's BTF.
///
/// # Errors
/// Names the structure and the field that differ: the object is not of this build.
pub(super) fn check(object: &Object) -> Result<(), Error> {
    let btf = object
        .btf()
        .map_err(|e| Error::from_bpf("cannot read the BPF object's types", &e))?
        .ok_or_else(|| Error::new("the BPF object has no type information"))?;
    let counters = offsets!(RawCounters: events, lost, read_failed, ignored, claim_full,
        comm_full, bad_site, births, duplicates);
    let structs = [
        ("stragd_event", std::mem::size_of::<wire::Event>(), wire::LAYOUT),
        ("stragd_site", std::mem::size_of::<RawSite>(), RawSite::LAYOUT),
        ("stragd_place", std::mem::size_of::<RawPlace>(), RawPlace::LAYOUT),
        ("stragd_counters", std::mem::size_of::<RawCounters>(), counters),
    ];
    for (name, bytes, fields) in structs {
        let differs = |what: &str| {
            Error::new(format!("the BPF object is not of this build: struct {name} {what}"))
        };
        let found: Struct<'_> = btf.type_by_name(name).ok_or_else(|| differs("is missing"))?;
        if found.size() != bytes {
            return Err(differs(&format!("has {} bytes, not {bytes}", found.size())));
        }
        if found.len() != fields.len() {
            return Err(differs("has other fields"));
        }
        for (member, (field, offset)) in found.iter().zip(fields) {
            let same_name = member.name.is_some_and(|n| n == *field);
            let at = MemberAttr::Normal { offset: *offset as u32 * 8 };
            let same_place = matches!((member.attr, at), (MemberAttr::Normal { offset: a },
                MemberAttr::Normal { offset: b }) if a == b);
            if !same_name || !same_place {
                return Err(differs(&format!("differs at field {field}")));
            }
        }
    }
    Ok(())
}
