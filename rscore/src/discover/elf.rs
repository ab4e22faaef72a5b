//! Bounded ELF reader: finds exported functions, build-id and texts in a file that a job can
//! write, with a few kilobytes of `pread` however large the file is.
//!
//! 64-bit little-endian objects only. Nothing here trusts a size, count or offset of the file:
//! each is checked against the file and capped, and all work is under the reader's budget.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use super::headers::{load_of, read_dynamic, read_segments, u16_at, u32_at, u64_at};
use super::headers::{Dynamic, SectionTable, Segment};
pub use super::reader::Error;
use super::reader::Reader;

/// `e_machine` of x86-64.
pub const EM_X86_64: u16 = 62;
/// `e_machine` of 64-bit Arm.
pub const EM_AARCH64: u16 = 183;

/// Bytes of one note segment that are looked at.
const MAX_NOTES: u64 = 64 << 10;
/// Steps along one hash chain; real chains are under twenty.
const MAX_CHAIN: u32 = 4096;
/// Symbols looked at where a file has no hash table.
const MAX_SCAN: u64 = 100_000;
/// Longest symbol name that is looked for, bytes.
const MAX_NAME: usize = 1024;

/// Bytes of one entry of the symbol table.
pub(super) const SYMBOL_BYTES: u64 = 24;

/// A defined, exported function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    pub name: String,
    /// Virtual address in the file's own terms.
    pub value: u64,
    /// Place of the first instruction in the file, bytes.
    pub offset: u64,
    /// Bytes of the function, 0 where the file does not say.
    pub size: u64,
}

/// An open ELF file. Cheap: `open` reads one or two pages.
pub struct Elf<'f> {
    pub(super) reader: Reader<'f>,
    machine: u16,
    pub(super) segments: Vec<Segment>,
    pub(super) sections: SectionTable,
    dynamic: Dynamic,
}

impl<'f> Elf<'f> {
    /// Reads the file header, the program headers and the dynamic section.
    ///
    /// # Errors
    /// No ELF file, one of another class or byte order, one without a dynamic section, or
    /// headers that point outside the file.
    pub fn open(file: &'f File) -> Result<Elf<'f>, Error> {
        let reader = Reader::new(file)?;
        let mut head = [0u8; 64];
        if reader.size() < head.len() as u64 {
            return Err(Error::NotElf);
        }
        reader.exact(0, &mut head)?;
        if head[..4] != *b"\x7fELF" {
            return Err(Error::NotElf);
        }
        if head[4] != 2 || head[5] != 1 {
            return Err(Error::Unsupported("not 64-bit little-endian"));
        }
        let (kind, machine) = (u16_at(&head, 16), u16_at(&head, 18));
        if kind != 2 && kind != 3 {
            return Err(Error::Unsupported("neither executable nor shared object"));
        }
        let segments = read_segments(&reader, &head)?;
        let dynamic = read_dynamic(&reader, &segments)?;
        let sections = SectionTable {
            offset: u64_at(&head, 40),
            count: u16_at(&head, 60),
            entry_bytes: u16_at(&head, 58),
            names: u16_at(&head, 62),
        };
        Ok(Elf { reader, machine, segments, sections, dynamic })
    }

    /// `e_machine`: [`EM_X86_64`], [`EM_AARCH64`] or another.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.reader.size()
    }

    /// (calls of `pread`, bytes read through the symbol path) so far.
    pub fn cost(&self) -> (u64, u64) {
        self.reader.cost()
    }

    /// The GNU build-id note, 4 to 64 bytes.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        self.segments.iter().filter(|s| s.is_note()).find_map(|s| self.build_id_in(s))
    }

    fn build_id_in(&self, segment: &Segment) -> Option<Vec<u8>> {
        let pad = if segment.align == 8 { 8 } else { 4 };
        let end = segment.offset + segment.bytes.min(MAX_NOTES);
        let mut at = segment.offset;
        while at.checked_add(12)? <= end {
            let name_bytes = u64::from(self.reader.u32(at).ok()?);
            let desc_bytes = u64::from(self.reader.u32(at + 4).ok()?);
            let kind = self.reader.u32(at + 8).ok()?;
            let name = at + 12;
            let desc = at + (12 + name_bytes).next_multiple_of(pad);
            if kind == 3 && name_bytes == 4 && (4..=64).contains(&desc_bytes) {
                let mut owner = [0; 4];
                self.reader.exact(name, &mut owner).ok()?;
                if owner == *b"GNU\0" && desc + desc_bytes <= end {
                    let mut id = vec![0; desc_bytes as usize];
                    self.reader.exact(desc, &mut id).ok()?;
                    return Some(id);
                }
            }
            // Both sizes are 32 bits wide: the sum cannot overflow, and it grows.
            at = desc + desc_bytes.next_multiple_of(pad);
        }
        None
    }

    /// `DT_SONAME`, at most 255 bytes, printable.
    pub fn soname(&self) -> Option<String> {
        let at = self.string_offset(self.dynamic.soname?)?;
        let mut buf = [0u8; 256];
        let room = (self.reader.size().checked_sub(at)?).min(buf.len() as u64) as usize;
        self.reader.exact(at, &mut buf[..room]).ok()?;
        let end = buf[..room].iter().position(|&b| b == 0)?;
        let text = std::str::from_utf8(&buf[..end]).ok()?;
        (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.to_owned())
    }

    /// The functions among `names` that this file defines and exports, weak ones included, in
    /// the order of `names`. A name with several versions gives one symbol per address.
    ///
    /// # Errors
    /// A table that points outside the file, or one that costs more than the budget.
    pub fn find_symbols(&self, names: &[&str]) -> Result<Vec<Symbol>, Error> {
        let (Some(symtab), Some(_)) = (self.dynamic.symtab, self.dynamic.strtab) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        if self.dynamic.gnu_hash.is_none() && self.dynamic.hash.is_none() {
            self.scan(symtab, names, &mut found)?;
            return Ok(found);
        }
        for name in names {
            if name.is_empty() || name.len() > MAX_NAME {
                continue;
            }
            let first = found.len();
            let mut take = |elf: &Self, index: u64| -> Result<(), Error> {
                if let Some(symbol) = elf.symbol(symtab, index, name)? {
                    let known = found[first..].iter().any(|s: &Symbol| s.value == symbol.value);
                    if !known {
                        found.push(symbol);
                    }
                }
                Ok(())
            };
            match (self.dynamic.gnu_hash, self.dynamic.hash) {
                (Some(table), _) => self.gnu_lookup(table, name, &mut take)?,
                (None, Some(table)) => self.sysv_lookup(table, name, &mut take)?,
                (None, None) => {}
            }
        }
        Ok(found)
    }

    /// Reads the file as it is; for instruction bytes at a symbol's offset.
    ///
    /// # Errors
    /// What `pread` says.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.reader.raw(offset, buf)
    }

    /// File offset of an address that a `PT_LOAD` takes from the file.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.load_of(address).map(|s| s.offset + (address - s.address))
    }

    fn load_of(&self, address: u64) -> Option<&Segment> {
        load_of(&self.segments, address)
    }

    fn at(&self, table: u64, index: u64, entry: u64) -> Result<u64, Error> {
        index
            .checked_mul(entry)
            .and_then(|bytes| table.checked_add(bytes))
            .and_then(|address| self.offset_of(address))
            .ok_or(Error::Malformed("a table points outside the loaded segments"))
    }

    fn string_offset(&self, index: u64) -> Option<u64> {
        if index >= self.dynamic.strtab_bytes {
            return None;
        }
        self.offset_of(self.dynamic.strtab?.checked_add(index)?)
    }

    fn gnu_lookup(
        &self,
        table: u64,
        name: &str,
        take: &mut dyn FnMut(&Self, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let word = |index: u64| self.reader.u32(self.at(table, index, 4)?);
        let (buckets, first, bloom, shift) = (word(0)?, word(1)?, word(2)?, word(3)?);
        if buckets == 0 || bloom == 0 || shift >= 32 {
            return Err(Error::Malformed("GNU hash header"));
        }
        let hash = name.bytes().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(b.into()));
        let bloom_table = table.checked_add(16).ok_or(Error::Malformed("GNU hash table"))?;
        let filter = self.reader.u64(self.at(bloom_table, u64::from(hash / 64 % bloom), 8)?)?;
        let mask = 1u64 << (hash % 64) | 1u64 << ((hash >> shift) % 64);
        if filter & mask != mask {
            return Ok(());
        }
        let bucket_table = bloom_table
            .checked_add(8 * u64::from(bloom))
            .ok_or(Error::Malformed("GNU hash table"))?;
        let chain_table = bucket_table
            .checked_add(4 * u64::from(buckets))
            .ok_or(Error::Malformed("GNU hash table"))?;
        let index = self.reader.u32(self.at(bucket_table, u64::from(hash % buckets), 4)?)?;
        if index == 0 || index < first {
            return Ok(());
        }
        for step in 0..MAX_CHAIN {
            let place = u64::from(index - first) + u64::from(step);
            let entry = self.reader.u32(self.at(chain_table, place, 4)?)?;
            if entry | 1 == hash | 1 {
                take(self, u64::from(index) + u64::from(step))?;
            }
            if entry & 1 == 1 {
                return Ok(());
            }
        }
        Err(Error::Malformed("GNU hash chain without an end"))
    }

    fn sysv_lookup(
        &self,
        table: u64,
        name: &str,
        take: &mut dyn FnMut(&Self, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let word = |index: u64| self.reader.u32(self.at(table, index, 4)?);
        let (buckets, chains) = (word(0)?, word(1)?);
        if buckets == 0 {
            return Err(Error::Malformed("hash header"));
        }
        let hash = name.bytes().fold(0u32, |h, b| {
            let h = (h << 4).wrapping_add(b.into());
            let high = h & 0xf000_0000;
            (h ^ (high >> 24)) & !high
        });
        let mut index = word(2 + u64::from(hash % buckets))?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                return Ok(());
            }
            if index >= chains {
                return Err(Error::Malformed("hash chain leaves its table"));
            }
            take(self, u64::from(index))?;
            index = word(2 + u64::from(buckets) + u64::from(index))?;
        }
        Err(Error::Malformed("hash chain without an end"))
    }

    /// Without a hash table the number of symbols is not written anywhere; linkers put the
    /// string table behind the symbols, so that is where the scan ends.
    fn scan(&self, symtab: u64, names: &[&str], found: &mut Vec<Symbol>) -> Result<(), Error> {
        let strtab = self.dynamic.strtab.unwrap_or(symtab);
        let count = (strtab.saturating_sub(symtab) / SYMBOL_BYTES).min(MAX_SCAN);
        let mut seen = BTreeSet::new();
        for index in 1..count {
            let Some((place, _)) = self.function(symtab, index)? else { continue };
            for name in names.iter().filter(|n| !n.is_empty() && n.len() <= MAX_NAME) {
                if self.name_is(place, name)? {
                    if let Some(symbol) = self.symbol(symtab, index, name)? {
                        if seen.insert((symbol.name.clone(), symbol.value)) {
                            found.push(symbol);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Symbol `index` if it is a defined exported function called `name` in executable memory.
    fn symbol(&self, symtab: u64, index: u64, name: &str) -> Result<Option<Symbol>, Error> {
        let Some((name_index, raw)) = self.function(symtab, index)? else { return Ok(None) };
        let value = u64_at(&raw, 8);
        let Some(segment) = self.load_of(value).filter(|s| s.is_executable()) else {
            return Ok(None);
        };
        if !self.name_is(name_index, name)? {
            return Ok(None);
        }
        Ok(Some(Symbol {
            name: name.to_owned(),
            value,
            offset: segment.offset + (value - segment.address),
            size: u64_at(&raw, 16),
        }))
    }

    /// (name index, entry) of symbol `index` if it is a defined global or weak function.
    fn function(&self, symtab: u64, index: u64) -> Result<Option<(u64, [u8; 24])>, Error> {
        let mut raw = [0u8; SYMBOL_BYTES as usize];
        self.reader.exact(self.at(symtab, index, SYMBOL_BYTES)?, &mut raw)?;
        let (binding, kind, section) = (raw[4] >> 4, raw[4] & 15, u16_at(&raw, 6));
        // An indirect function (10) names its resolver, not the code that will run.
        let function = kind == 2 && (binding == 1 || binding == 2);
        let defined = section != 0 && section < 0xff00;
        Ok((function && defined).then(|| (u64::from(u32_at(&raw, 0)), raw)))
    }

    fn name_is(&self, index: u64, name: &str) -> Result<bool, Error> {
        let mut buf = [0u8; MAX_NAME + 1];
        let wanted = &mut buf[..name.len() + 1];
        let Some(at) = self.string_offset(index) else { return Ok(false) };
        if at.checked_add(wanted.len() as u64).is_none_or(|end| end > self.reader.size()) {
            return Ok(false);
        }
        self.reader.exact(at, wanted)?;
        Ok(wanted[name.len()] == 0 && wanted[..name.len()] == *name.as_bytes())
    }
}
