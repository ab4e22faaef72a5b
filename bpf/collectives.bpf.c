// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
#include "events.h"
char LICENSE[] __attribute__((section("license"), used)) = "Dual BSD/GPL";
