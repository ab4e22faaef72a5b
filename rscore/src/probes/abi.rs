//! Calling conventions: from a C signature to the place of each argument at function entry.

use super::site::BASE_SP;

/// Architecture of the probed code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The one this program runs on; `None` where no convention is known.
    pub fn native() -> Option<Arch> {
        if cfg!(target_arch = "x86_64") {
            Some(Arch::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Arch::Aarch64)
        } else {
            None
        }
    }
}

/// Type of an argument, as far as the convention asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Pointer or `size_t`.
    Word,
    /// `int`.
    Int,
    /// `unsigned int` or an enum.
    Unsigned,
    /// Structure of this many bytes by value; more than 16.
    Struct(u32),
}

impl Type {
    /// Bytes of the value that is read, and whether it is sign-extended.
    pub fn width(self) -> (u8, bool) {
        match self {
            Type::Word | Type::Struct(_) => (8, false),
            Type::Int => (4, true),
            Type::Unsigned => (4, false),
        }
    }
}

/// Where an argument is: `base`, then reads at these offsets reach its value.
///
/// For a structure the value is its address, given as a base and an offset still to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub base: u8,
    /// Reads before the value, or before the address of the structure.
    pub reads: Vec<i32>,
    /// Offset that the structure's first byte has from there; 0 for scalars.
    pub start: i32,
}

/// Locations of the arguments of a C function, all of integer class.
pub fn locate(arch: Arch, arguments: &[Type]) -> Vec<Location> {
    let (registers, mut stack) = match arch {
        // System V: the return address lies at sp, the seventh argument above it.
        Arch::X86_64 => (6, 8),
        // AAPCS64: the ninth argument lies at sp.
        Arch::Aarch64 => (8, 0),
    };
    let mut next = 0u8;
    let mut scalar = |stack: &mut i32| {
        if next < registers {
            next += 1;
            return Location { base: next - 1, reads: vec![], start: 0 };
        }
        *stack += 8;
        Location { base: BASE_SP, reads: vec![*stack - 8], start: 0 }
    };
    let mut locations = Vec::with_capacity(arguments.len());
    for argument in arguments {
        locations.push(match (argument, arch) {
            // In memory, on the stack itself, and no register is used up.
            (Type::Struct(bytes), Arch::X86_64) => {
                let start = stack;
                stack += bytes.next_multiple_of(8) as i32;
                Location { base: BASE_SP, reads: vec![], start }
            }
            // The caller's copy, passed by address.
            (Type::Struct(_), Arch::Aarch64) | (_, _) => scalar(&mut stack),
        });
    }
    locations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(arch: Arch, arguments: &[Type], index: usize) -> (u8, Vec<i32>, i32) {
        let l = &locate(arch, arguments)[index];
        (l.base, l.reads.clone(), l.start)
    }

    #[test]
    fn unique_id_by_value_takes_no_register_on_x86() {
        let init = [Type::Word, Type::Int, Type::Struct(128), Type::Int];
        assert_eq!(at(Arch::X86_64, &init, 2), (BASE_SP, vec![], 8));
        assert_eq!(at(Arch::X86_64, &init, 3), (2, vec![], 0));
        assert_eq!(at(Arch::Aarch64, &init, 2), (2, vec![], 0));
        assert_eq!(at(Arch::Aarch64, &init, 3), (3, vec![], 0));
    }

    #[test]
    fn arguments_beyond_the_registers_are_on_the_stack() {
        let put = [Type::Word; 11];
        assert_eq!(at(Arch::X86_64, &put, 10), (BASE_SP, vec![40], 0));
        assert_eq!(at(Arch::Aarch64, &put, 10), (BASE_SP, vec![16], 0));
    }
}
