//! Which devices a process sees are local filesystems, from `/proc/PID/mountinfo`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Bytes of one `mountinfo` that are read; nodes with a thousand containers have 1 MB.
const MAX_BYTES: u64 = 4 << 20;

/// Filesystems that answer without a server; overlays count as their layers usually do.
const LOCAL: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs",
    "erofs", "devtmpfs", "iso9660",
];

/// Whether a file on `dev` can be read without waiting for a server. Unknown devices are not.
pub(super) fn is_local(pid: u32, dev: u64) -> bool {
    // A device with a major number of its own is a disk.
    if dev >> 32 != 0 {
        return true;
    }
    let Ok(file) = File::open(format!("/proc/{pid}/mountinfo")) else { return false };
    find(file, dev).is_some_and(|kind| LOCAL.contains(&kind.as_str()))
}

/// `id parent major:minor root mount-point options... - type source options`
fn find(text: impl Read, dev: u64) -> Option<String> {
    let wanted = format!("{}:{}", dev >> 32, dev & 0xffff_ffff);
    for line in BufReader::new(text.take(MAX_BYTES)).split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        if line.split(' ').nth(2) == Some(&wanted) {
            let (_, after) = line.split_once(" - ")?;
            return after.split(' ').next().map(str::to_owned);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_device() {
        let text = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            40 27 0:44 / /data rw shared:3 master:1 - fuse.juicefs x rw\n\
            41 27 0:45 / /a\\040b rw - overlay overlay rw\n";
        assert_eq!(find(text.as_bytes(), 44).as_deref(), Some("fuse.juicefs"));
        assert_eq!(find(text.as_bytes(), 45).as_deref(), Some("overlay"));
        assert_eq!(find(text.as_bytes(), 46), None);
        assert!(is_local(std::process::id(), 8 << 32));
    }
}
