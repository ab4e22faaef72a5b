//! Small, fast, unkeyed hashing for tables whose size is bounded anyway.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// One round of mixing: `value` folded into `state`.
#[inline]
pub(crate) fn mix(state: u64, value: u64) -> u64 {
    let product = u128::from(state ^ value ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(u128::from(0xd6e8_feb8_6659_fd93_u64 ^ value.rotate_left(32)));
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hasher of single integers; a job can provoke collisions, but every table is bounded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// `HashMap` over [`Mixer`].
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
