/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Library versions whose default is not to record everything, or that record less than they
 * should, and why. The first row that fits decides; without one the default is FULL. Numbered
 * from 1 in this order (`quirk` of the ring's header): append at the end of a vendor's rows only
 * together with the reader. One row a line, so that other programs can read the table.
 *
 * QUIRK(vendor, from, to, free shared memory wanted in MiB, mode, reason)
 *
 * from, to: ncclGetVersion, both included. A row with a wish for shared memory fits only where
 * /dev/shm has less than that free.
 */
/* clang-format off */
QUIRK(NVIDIA, 23102, 23102, 0, PROGRESS, "NCCL 2.31.2 slows all-reduce of 128 KB to 4 MB by 4 to 13 % when kernels are timed, and gives times to the wrong collective after a broadcast (NVIDIA/nccl#2355, #2368)")
QUIRK(NVIDIA, 23003, 23003, 0, PROGRESS, "NCCL 2.30.3 may crash in all-to-all over several nodes with a profiler plugin (NVIDIA/nccl#2112)")
QUIRK(NVIDIA, 22600, 23099, 256, PROGRESS, "NCCL up to 2.30 may crash when /dev/shm is too small for the queue that timing kernels needs (NVIDIA/nccl#2326): give the container more, e.g. --shm-size=1g")
QUIRK(NVIDIA, 22902, 23099, 0, FULL, "NCCL 2.29 and 2.30 do not report broadcasts: NCCL_ALLGATHERV_ENABLE=0 brings them back")
QUIRK(NVIDIA, 22600, 22699, 0, FULL, "NCCL 2.26 gives no device clock: times are those of its polling thread")
QUIRK(AMD, 23102, 23102, 0, PROGRESS, "RCCL 2.31.2 has the defects of NCCL 2.31.2 (NVIDIA/nccl#2355, #2368)")
QUIRK(AMD, 22803, 22803, 0, PROGRESS, "RCCL 2.28.3 (ROCm 7.11 to 7.13) may crash at the end of a communicator with a profiler plugin")
QUIRK(AMD, 22707, 22707, 0, OFF, "RCCL 2.27.7 of ROCm 7.1.0 crashes in all-to-all with a profiler plugin (ROCm/rccl#1973); the repaired one of 7.1.1 has the same version")
QUIRK(AMD, 22600, 23099, 256, PROGRESS, "RCCL up to 2.30 may crash when /dev/shm is too small for the queue that timing kernels needs (NVIDIA/nccl#2326): give the container more, e.g. --shm-size=1g")
QUIRK(AMD, 22600, 22699, 0, FULL, "RCCL 2.26 gives no device clock: times are those of its polling thread")
/* clang-format on */
