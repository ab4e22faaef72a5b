//! Kinds of collectives of one process: what the sequence of steps is made of.

use super::hash::{mix, Map};

/// Most kinds that one process may have; what comes after is known without its size.
const MAX_KINDS: usize = 2048;
/// `bytes` of a kind that stands for every size.
const ANY_SIZE: u64 = u64::MAX;

/// Index of a kind within its process.
pub(crate) type KindId = u16;

/// One kind: same communicator, function, datatype and size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    key: u64,
    /// The same kind with every size taken together.
    pub coarse: KindId,
    /// Ordinal of the communicator within the process.
    pub communicator: u16,
    /// Hash of function, datatype and size: equal on all ranks, knows no pointer.
    pub content: u64,
}

/// Table of the kinds of one process, bounded.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    kinds: Vec<Kind>,
    index: Map<u64, KindId>,
}

/// What a collective is, before it is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub communicator: u16,
    pub function: u8,
    pub datatype: u8,
    pub bytes: u64,
}

impl Shape {
    /// One shape for every size.
    pub fn of_any_size(communicator: u16, function: u8, datatype: u8) -> Shape {
        Shape { communicator, function, datatype, bytes: ANY_SIZE }
    }

    #[inline]
    fn key(&self) -> u64 {
        let head = u64::from(self.communicator) << 16
            | u64::from(self.function) << 8
            | u64::from(self.datatype);
        mix(head, self.bytes)
    }
    fn content(&self) -> u64 {
        mix(mix(1, u64::from(self.function) << 8 | u64::from(self.datatype)), self.bytes)
    }
}

impl Kinds {
    /// Kind of `shape`; `expected` is tried first and makes the usual case one comparison.
    #[inline]
    pub fn find(&mut self, shape: &Shape, expected: Option<KindId>) -> KindId {
        let key = shape.key();
        if let Some(id) = expected {
            if self.kinds.get(usize::from(id)).is_some_and(|kind| kind.key == key) {
                return id;
            }
        }
        match self.index.get(&key) {
            Some(&id) => id,
            None => self.insert(shape, key),
        }
    }

    fn insert(&mut self, shape: &Shape, key: u64) -> KindId {
        let any = Shape::of_any_size(shape.communicator, shape.function, shape.datatype);
        let any_key = any.key();
        let coarse = match self.index.get(&any_key) {
            Some(&id) => id,
            // One place is kept: the last kind takes whatever fits nowhere else.
            None if self.kinds.len() + 1 >= MAX_KINDS => return self.overflow(),
            None => {
                let id = self.kinds.len() as KindId;
                self.push(any_key, id, &any);
                id
            }
        };
        if key == any_key || self.kinds.len() + 1 >= MAX_KINDS {
            return coarse;
        }
        let id = self.kinds.len() as KindId;
        self.push(key, coarse, shape);
        id
    }

    fn overflow(&mut self) -> KindId {
        let last = (MAX_KINDS - 1) as KindId;
        if self.kinds.len() < MAX_KINDS {
            let shape = Shape { communicator: u16::MAX, function: 0, datatype: 0, bytes: ANY_SIZE };
            self.push(shape.key(), last, &shape);
        }
        last
    }

    fn push(&mut self, key: u64, coarse: KindId, shape: &Shape) {
        let id = self.kinds.len() as KindId;
        self.kinds.push(Kind {
            key,
            coarse,
            communicator: shape.communicator,
            content: shape.content(),
        });
        self.index.insert(key, id);
    }

    /// Facts of a kind that [`Kinds::find`] returned.
    #[inline]
    pub fn get(&self, id: KindId) -> &Kind {
        &self.kinds[usize::from(id)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_without_end_stay_bounded_and_keep_their_coarse_kind() {
        let mut kinds = Kinds::default();
        let shape = |bytes| Shape { communicator: 0, function: 1, datatype: 7, bytes };
        let first = kinds.find(&shape(8), None);
        for bytes in 0..100_000 {
            kinds.find(&shape(bytes), None);
        }
        for communicator in 0..10_000 {
            kinds.find(&Shape { communicator, function: 2, datatype: 7, bytes: 1 }, None);
        }
        assert!(kinds.kinds.len() <= MAX_KINDS && kinds.index.len() <= MAX_KINDS);
        assert_eq!(kinds.find(&shape(8), None), first);
        let late = kinds.find(&shape(99_999), None);
        assert_eq!(kinds.get(late).coarse, kinds.get(first).coarse);
    }
}
