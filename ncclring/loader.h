/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlopen and its kin under the oldest version of their names. They moved from libdl to libc with
 * glibc 2.34, where new versions were added; with the old ones one file loads on both.
 */
#ifndef STRAGD_LOADER_H
#define STRAGD_LOADER_H

#include <dlfcn.h>

#if defined(__GLIBC__) && !defined(STRAGD_ANY_GLIBC)
#if defined(__x86_64__)
#define STRAGD_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define STRAGD_OLDEST "GLIBC_2.17"
#endif
#ifdef STRAGD_OLDEST
__asm__(".symver dlopen,dlopen@" STRAGD_OLDEST);
__asm__(".symver dlclose,dlclose@" STRAGD_OLDEST);
__asm__(".symver dlsym,dlsym@" STRAGD_OLDEST);
__asm__(".symver dlerror,dlerror@" STRAGD_OLDEST);
__asm__(".symver dladdr,dladdr@" STRAGD_OLDEST);
#endif
#endif

#endif
