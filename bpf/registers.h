/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * The registers a uprobe program sees: the kernel's user_pt_regs ABI, written
 * down here so that one host can build for both architectures and no kernel
 * type is needed.
 */
#ifndef STRAGD_REGISTERS_H
#define STRAGD_REGISTERS_H

#if defined(__TARGET_ARCH_x86)
struct stragd_registers {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	__u64 orig_ax, ip, cs, flags, sp, ss;
};
#define REGISTER_0 di
#define REGISTER_1 si
#define REGISTER_2 dx
#define REGISTER_3 cx
#define REGISTER_4 r8
#define REGISTER_5 r9
#define REGISTER_6 ax /* not an argument; keeps the table of eight whole */
#define REGISTER_7 bx
#define REGISTER_SP sp
#define REGISTER_IP ip
#elif defined(__TARGET_ARCH_arm64)
struct stragd_registers {
	__u64 x0, x1, x2, x3, x4, x5, x6, x7;
	__u64 others[23];
	__u64 sp, pc, pstate;
};
#define REGISTER_0 x0
#define REGISTER_1 x1
#define REGISTER_2 x2
#define REGISTER_3 x3
#define REGISTER_4 x4
#define REGISTER_5 x5
#define REGISTER_6 x6
#define REGISTER_7 x7
#define REGISTER_SP sp
#define REGISTER_IP pc
#else
#error "build with -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif

/* One load per register with a constant offset: the compiler must not merge the
 * cases of a switch into one load at a computed offset, the verifier refuses
 * that on a context pointer. */
#define READ_REGISTER(value, regs, field)                                                          \
	asm volatile("%0 = *(u64 *)(%1 + %2)"                                                      \
		     : "=r"(value)                                                                 \
		     : "r"(regs), "i"(__builtin_offsetof(struct stragd_registers, field)))

#endif
