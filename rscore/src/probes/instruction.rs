//! Which instruction of a function to probe.
//!
//! The kernel emulates some instructions in the breakpoint's handler and must single-step
//! all others: a second trap, twenty times as dear in a virtual machine. So the probe goes
//! to the first emulated instruction as long as the arguments are still where the call put
//! them. Code is a job's file: bounded, and anything odd ends the search.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::abi::Arch;
use super::site::Spec;

/// Bytes of a function that are looked at.
pub const PROLOGUE_BYTES: usize = 64;
/// Instructions of a function that are looked at.
const PROLOGUE_INSTRUCTIONS: usize = 12;

/// The chosen instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Bytes after the symbol.
    pub offset: u64,
    /// Bytes that the stack pointer has gone down since function entry.
    pub pushed: i32,
    /// The kernel cannot emulate the instruction.
    pub single_step: bool,
}

/// Choose the instruction to probe in `code`, the first bytes of a function whose site needs
/// the places of `spec`.
pub fn choose(arch: Arch, code: &[u8], spec: &Spec) -> Choice {
    match arch {
        Arch::X86_64 => choose_x86(code, spec),
        Arch::Aarch64 => choose_aarch64(code),
    }
}

fn choose_x86(code: &[u8], spec: &Spec) -> Choice {
    let code = &code[..code.len().min(PROLOGUE_BYTES)];
    let skip: u64 = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let entry = Choice { offset: skip, pushed: 0, single_step: true };
    let needed: Vec<Register> =
        spec.places.iter().filter_map(|p| argument_register(p.register()?)).collect();
    let on_stack = spec.places.iter().any(|p| p.on_stack());
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    if decoder.set_position(skip as usize).is_err() {
        return entry;
    }
    decoder.set_ip(skip);
    let mut info = InstructionInfoFactory::new();
    let mut pushed = 0i32;
    for _ in 0..PROLOGUE_INSTRUCTIONS {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        let start = instruction.ip() as usize;
        if emulated(&code[start..start + instruction.len()]) {
            return Choice { offset: start as u64, pushed, single_step: false };
        }
        match lowers_stack(&instruction) {
            Some(bytes) => match pushed.checked_add(bytes) {
                Some(sum) => pushed = sum,
                None => break,
            },
            None if !passable(&instruction, &mut info, &needed, on_stack) => break,
            None => {}
        }
    }
    entry
}

/// Instructions that every kernel with uprobes emulates on x86-64: push of a register,
/// one-byte nop, near jumps and calls.
fn emulated(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0x50..=0x57]
            | [0x41, 0x50..=0x57]
            | [0x90]
            | [0xeb | 0x70..=0x7f, _]
            | [0xe8 | 0xe9, _, _, _, _]
            | [0x0f, 0x80..=0x8f, _, _, _, _]
    )
}

/// `sub rsp, constant`: how far.
fn lowers_stack(instruction: &Instruction) -> Option<i32> {
    let is_sub = matches!(instruction.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
    let of_sp = instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP;
    if !is_sub || !of_sp {
        return None;
    }
    i32::try_from(instruction.immediate(1) as i64).ok().filter(|bytes| *bytes >= 0)
}

/// Whether the arguments outlive this instruction.
fn passable(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    needed: &[Register],
    on_stack: bool,
) -> bool {
    // A string instruction or a system call is no prologue.
    let plain = instruction.flow_control() == FlowControl::Next
        && !instruction.has_rep_prefix()
        && !instruction.has_repne_prefix()
        && !matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Leave);
    if !plain {
        return false;
    }
    let info = info.info(instruction);
    let writes = |access| {
        !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    };
    for used in info.used_registers() {
        let full = used.register().full_register();
        if writes(used.access()) && (full == Register::RSP || needed.contains(&full)) {
            return false;
        }
    }
    // A store may hit the stack arguments, or what an argument points at; only stores below
    // the frame pointer or to the red zone would be safe, and they are rare this early.
    !info.used_memory().iter().any(|m| writes(m.access()) && (on_stack || !saves(m.base())))
}

/// Stores relative to the stack or frame pointer keep registers, they do not touch objects.
fn saves(base: Register) -> bool {
    matches!(base, Register::RSP | Register::RBP)
}

fn argument_register(number: u8) -> Option<Register> {
    const ORDER: [Register; 6] =
        [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
    ORDER.get(usize::from(number)).copied()
}

/// At entry, behind a `bti` landing pad. Hardware steps without a hypervisor's help here, so
/// no instruction is refused.
fn choose_aarch64(code: &[u8]) -> Choice {
    const BTI: [[u8; 4]; 4] = [
        [0x1f, 0x24, 0x03, 0xd5],
        [0x5f, 0x24, 0x03, 0xd5],
        [0x9f, 0x24, 0x03, 0xd5],
        [0xdf, 0x24, 0x03, 0xd5],
    ];
    let skip = BTI.iter().any(|bti| code.starts_with(bti));
    Choice { offset: if skip { 4 } else { 0 }, pushed: 0, single_step: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::table::rows;

    fn spec(symbol: &str) -> Spec {
        rows().iter().find(|r| r.symbol == symbol).unwrap().spec(Arch::X86_64, 0).unwrap()
    }

    fn all_reduce(code: &[u8]) -> (u64, i32, bool) {
        let c = choose(Arch::X86_64, code, &spec("ncclAllReduce"));
        (c.offset, c.pushed, c.single_step)
    }

    #[test]
    fn first_push_behind_endbr64() {
        assert_eq!(all_reduce(&[0x55, 0x48, 0x89, 0xe5]), (0, 0, false));
        assert_eq!(all_reduce(&[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x57]), (4, 0, false));
        assert_eq!(all_reduce(&[0xf3, 0x0f, 0x1e, 0xfa]), (4, 0, true));
    }

    #[test]
    fn passes_over_what_leaves_the_arguments_alone() {
        // mov rax, rdi; push rbx
        assert_eq!(all_reduce(&[0x48, 0x89, 0xf8, 0x53]), (3, 0, false));
        // mov edi, eax: rdi (send) is not needed by the row
        assert_eq!(all_reduce(&[0x89, 0xc7, 0x53]), (2, 0, false));
        // nop dword [rax+rax], 5 bytes; push
        assert_eq!(all_reduce(&[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55]), (5, 0, false));
        // sub rsp, 0x28; push rbx: stack places move by 0x28
        assert_eq!(all_reduce(&[0x48, 0x83, 0xec, 0x28, 0x53]), (4, 0x28, false));
    }

    #[test]
    fn stops_where_an_argument_is_lost() {
        // mov edx, eax (count); push rbx
        assert_eq!(all_reduce(&[0x89, 0xc2, 0x53]), (0, 0, true));
        // xor r9d, r9d (comm); push rbx
        assert_eq!(all_reduce(&[0x45, 0x31, 0xc9, 0x53]), (0, 0, true));
        // and rsp, -16; push rbx
        assert_eq!(all_reduce(&[0x48, 0x83, 0xe4, 0xf0, 0x53]), (0, 0, true));
        // add rsp, 8; push
        assert_eq!(all_reduce(&[0x48, 0x83, 0xc4, 0x08, 0x53]), (0, 0, true));
        // ret; push rbx: another function's
        assert_eq!(all_reduce(&[0xc3, 0x53]), (0, 0, true));
        // mov [rsp+8], rdi: overwrites the stack argument
        assert_eq!(all_reduce(&[0x48, 0x89, 0x7c, 0x24, 0x08, 0x53]), (0, 0, true));
        // rep movsb; push
        assert_eq!(all_reduce(&[0xf3, 0xa4, 0x53]), (0, 0, true));
        // xchg rdx, rax
        assert_eq!(all_reduce(&[0x48, 0x92, 0x53]), (0, 0, true));
    }

    #[test]
    fn jumps_are_emulated_but_not_passed() {
        assert_eq!(all_reduce(&[0xe9, 1, 0, 0, 0, 0x53]), (0, 0, false));
        // cmp qword [rdi+0x20], 0; jne: as gloo::reduce begins
        let code = [0x48, 0x83, 0x7f, 0x20, 0x00, 0x75, 0x09, 0xc3];
        let c = choose(Arch::X86_64, &code, &spec("_ZN4gloo6reduceERNS_13ReduceOptionsE"));
        assert_eq!((c.offset, c.single_step), (5, false));
    }

    #[test]
    fn garbage_ends_the_search() {
        assert_eq!(all_reduce(&[]), (0, 0, true));
        assert_eq!(all_reduce(&[0x06, 0x55]), (0, 0, true));
        assert_eq!(all_reduce(&[0x48, 0x81]), (0, 0, true));
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let code: Vec<u8> = (0..(seed % 70))
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 33) as u8
                })
                .collect();
            let c = choose(Arch::X86_64, &code, &spec("ncclCommInitRank"));
            assert!(c.offset <= PROLOGUE_BYTES as u64 && c.pushed >= 0);
            seed = seed.wrapping_add(1);
        }
    }
}
