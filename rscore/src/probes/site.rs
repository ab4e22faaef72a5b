//! Probe sites as the BPF program reads them: the `#[repr(C)]` twins of `bpf/site.h`.

/// Links that may be open at once.
pub const LINKS_MAX: usize = 1024;
/// Rows of the `sites` map.
pub const SITES_MAX: usize = 2048;
/// Base of a place that is the stack pointer; 0 to 7 are the integer argument registers.
pub const BASE_SP: u8 = 8;
/// Reads that may follow one another.
pub const DEPTH_MAX: usize = 3;

/// Fields of a site's `places`, in the order of `enum stragd_field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Count = 0,
    Comm = 1,
    Id = 2,
    Aux = 3,
    Peer = 4,
    Datatype = 5,
    Reduction = 6,
}

/// Number of fields.
pub const FIELDS: usize = 7;

/// Flags of a site.
pub mod flag {
    /// The lifecycle ring instead of the bulk ring.
    pub const LIFECYCLE: u16 = 1;
    /// `count` is in bytes: the program divides it by `id`.
    pub const BYTES: u16 = 2;
    /// `comm` is where the new communicator will be written.
    pub const OUT_COMM: u16 = 4;
    /// `id` is where the new communicator will be written.
    pub const OUT_ID: u16 = 8;
    /// `comm` is in use: bind it if it is not yet known.
    pub const USES: u16 = 16;
    /// `comm` ends.
    pub const ENDS: u16 = 32;
}

/// Where the value of one field is at the probed instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Place {
    kind: u8,
    base: u8,
    width: u8,
    flags: u8,
    offsets: [i32; DEPTH_MAX],
}

const CONST: u8 = 0;
const VALUE: u8 = 1;
const SIGNED: u8 = 4;

impl Place {
    /// (field, byte offset), compared with the BPF object's types at load.
    pub const LAYOUT: &[(&str, usize)] = &[
        ("kind", std::mem::offset_of!(Place, kind)),
        ("base", std::mem::offset_of!(Place, base)),
        ("width", std::mem::offset_of!(Place, width)),
        ("flags", std::mem::offset_of!(Place, flags)),
        ("offsets", std::mem::offset_of!(Place, offsets)),
    ];

    /// The same value at every hit.
    pub fn constant(value: i32) -> Place {
        Place { kind: CONST, offsets: [value, 0, 0], ..Place::default() }
    }

    /// The value of `base` after following `path`: each offset is added and the address read.
    /// `None` where the path is longer than the program follows.
    pub fn value(base: u8, path: &[i32], width: u8, signed: bool) -> Option<Place> {
        if path.len() > DEPTH_MAX || base > BASE_SP {
            return None;
        }
        let mut offsets = [0; DEPTH_MAX];
        offsets[..path.len()].copy_from_slice(path);
        let flags = path.len() as u8 | if signed { SIGNED } else { 0 };
        Some(Place { kind: VALUE, base, width, flags, offsets })
    }

    /// The argument register that this place needs intact, if any.
    pub fn register(&self) -> Option<u8> {
        (self.kind == VALUE && self.base != BASE_SP).then_some(self.base)
    }

    /// Whether the place is relative to the stack pointer.
    pub fn on_stack(&self) -> bool {
        self.kind == VALUE && self.base == BASE_SP
    }

    /// The same place after the stack pointer went down by `bytes`.
    pub fn after_push(mut self, bytes: i32) -> Place {
        if self.on_stack() {
            self.offsets[0] = self.offsets[0].saturating_add(bytes);
        }
        self
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind == CONST {
            return write!(f, "{}", self.offsets[0]);
        }
        match self.base {
            BASE_SP => write!(f, "sp")?,
            base => write!(f, "arg{base}")?,
        }
        for offset in &self.offsets[..(self.flags & 3) as usize] {
            write!(f, "[{offset}]")?;
        }
        let sign = if self.flags & SIGNED != 0 { "i" } else { "u" };
        write!(f, ":{sign}{}", u32::from(self.width) * 8)
    }
}

/// One row of the `sites` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Spec {
    pub what: u8,
    pub function: u8,
    pub flags: u16,
    /// Row of the probe table.
    pub row: u32,
    pub places: [Place; FIELDS],
}

const _: () = assert!(std::mem::size_of::<Place>() == 16);
const _: () = assert!(std::mem::size_of::<Spec>() == 120);

impl Spec {
    /// (field, byte offset), compared with the BPF object's types at load.
    pub const LAYOUT: &[(&str, usize)] = &[
        ("what", std::mem::offset_of!(Spec, what)),
        ("function", std::mem::offset_of!(Spec, function)),
        ("flags", std::mem::offset_of!(Spec, flags)),
        ("row", std::mem::offset_of!(Spec, row)),
        ("places", std::mem::offset_of!(Spec, places)),
    ];

    /// The bytes of the map's value.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes = std::mem::size_of::<Spec>();
        // SAFETY: Spec is repr(C) of integers without padding (its size is the sum of its
        // fields), so every byte is initialised.
        unsafe { std::slice::from_raw_parts((self as *const Spec).cast(), bytes) }
    }
}

/// A place to probe in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Offset of the probed instruction in the file, bytes.
    pub offset: u64,
    /// Symbol as the file names it.
    pub symbol: String,
    /// The kernel must single-step the instruction: some 20 µs per hit in a virtual machine.
    pub single_step: bool,
    pub spec: Spec,
}
