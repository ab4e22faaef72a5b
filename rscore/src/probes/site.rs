//! Probe sites: where the fields of a record are when a function is entered.

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
pub struct Place {
    constant: bool,
    base: u8,
    width: u8,
    signed: bool,
    depth: u8,
    rare: bool,
    offsets: [i32; DEPTH_MAX],
}

impl Place {
    /// The same value at every hit.
    pub fn constant(value: i32) -> Place {
        Place { constant: true, offsets: [value, 0, 0], ..Place::default() }
    }

    /// The value of `base` after following `path`: each offset is added and the address read.
    /// `None` where the path is longer than the program follows.
    pub fn value(base: u8, path: &[i32], width: u8, signed: bool) -> Option<Place> {
        if path.len() > DEPTH_MAX || base > BASE_SP {
            return None;
        }
        let mut offsets = [0; DEPTH_MAX];
        offsets[..path.len()].copy_from_slice(path);
        let depth = path.len() as u8;
        Some(Place { constant: false, base, width, signed, depth, rare: false, offsets })
    }

    /// The same, read only now and then: at the first of many tags.
    pub fn rarely(self, rare: bool) -> Place {
        Place { rare, ..self }
    }

    /// The value, where it is the same at every hit.
    pub fn as_constant(&self) -> Option<i32> {
        self.constant.then_some(self.offsets[0])
    }

    pub(super) fn base(&self) -> u8 {
        self.base
    }

    pub(super) fn path(&self) -> &[i32] {
        &self.offsets[..usize::from(self.depth)]
    }

    pub(super) fn width(&self) -> u8 {
        self.width
    }

    pub(super) fn rare(&self) -> bool {
        self.rare
    }

    pub(super) fn signed(&self) -> bool {
        self.signed
    }

    /// The argument register that this place needs intact, if any.
    pub fn register(&self) -> Option<u8> {
        (!self.constant && self.base != BASE_SP).then_some(self.base)
    }

    /// Whether the place is relative to the stack pointer.
    pub fn on_stack(&self) -> bool {
        !self.constant && self.base == BASE_SP
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
        if self.constant {
            return write!(f, "{}", self.offsets[0]);
        }
        match self.base {
            BASE_SP => write!(f, "sp")?,
            base => write!(f, "arg{base}")?,
        }
        for offset in self.path() {
            write!(f, "[{offset}]")?;
        }
        let sign = if self.signed { "i" } else { "u" };
        write!(f, ":{sign}{}", u32::from(self.width) * 8)
    }
}

/// What a probe site delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    pub what: u8,
    pub function: u8,
    pub flags: u16,
    /// Row of the probe table.
    pub row: u32,
    pub places: [Place; FIELDS],
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
