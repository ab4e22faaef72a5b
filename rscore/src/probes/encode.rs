//! From a spec to the row of the `sites` map: the `#[repr(C)]` twins of `bpf/site.h`.
//!
//! What is the same at every hit goes into a ready-made record that the program copies; only the
//! rest is followed. A read of a job's memory costs some 0.2 µs in the job, so a pointer that is
//! a field of the record already is not read again for the fields behind it.

use super::site::{flag, Field, Place, Spec, BASE_SP, DEPTH_MAX, FIELDS};
use crate::wire::Event;

/// Base of a place that is one of the record's 64-bit fields.
const BASE_FIELD: u8 = BASE_SP + 1;
/// Base of a place whose value the paired place before it has read.
const BASE_SPARE: u8 = BASE_FIELD + 4;
const DEPTH: u8 = 3;
const SIGNED: u8 = 4;
const PAIRED: u8 = 8;
const RARE: u8 = 16;
/// The communicator comes first, as the program expects.
const ORDER: [Field; FIELDS] = [
    Field::Comm,
    Field::Count,
    Field::Id,
    Field::Peer,
    Field::Aux,
    Field::Datatype,
    Field::Reduction,
];

/// Twin of `struct stragd_place`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawPlace {
    field: u8,
    base: u8,
    width: u8,
    flags: u8,
    offsets: [i32; DEPTH_MAX],
}

/// Twin of `struct stragd_site`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawSite {
    record: Event,
    flags: u16,
    places_used: u16,
    row: u32,
    places: [RawPlace; FIELDS],
}

const _: () = assert!(std::mem::size_of::<RawPlace>() == 16);
const _: () = assert!(std::mem::size_of::<RawSite>() == 184);

impl RawPlace {
    /// (field, byte offset), compared with the BPF object's types at load.
    pub const LAYOUT: &[(&str, usize)] = &[
        ("field", std::mem::offset_of!(RawPlace, field)),
        ("base", std::mem::offset_of!(RawPlace, base)),
        ("width", std::mem::offset_of!(RawPlace, width)),
        ("flags", std::mem::offset_of!(RawPlace, flags)),
        ("offsets", std::mem::offset_of!(RawPlace, offsets)),
    ];

    fn new(field: Field, base: u8, path: &[i32], place: &Place) -> RawPlace {
        let mut offsets = [0; DEPTH_MAX];
        offsets[..path.len()].copy_from_slice(path);
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = path.len() as u8 | flag(place.signed(), SIGNED) | flag(place.rare(), RARE);
        RawPlace { field: field as u8, base, width: place.width(), flags, offsets }
    }
}

impl RawSite {
    /// (field, byte offset), compared with the BPF object's types at load.
    pub const LAYOUT: &[(&str, usize)] = &[
        ("record", std::mem::offset_of!(RawSite, record)),
        ("flags", std::mem::offset_of!(RawSite, flags)),
        ("places_used", std::mem::offset_of!(RawSite, places_used)),
        ("row", std::mem::offset_of!(RawSite, row)),
        ("places", std::mem::offset_of!(RawSite, places)),
    ];

    pub fn new(spec: &Spec) -> RawSite {
        let record = Event { what: spec.what, function: spec.function, ..Event::default() };
        let mut site = RawSite { record, flags: spec.flags, row: spec.row, ..RawSite::default() };
        for field in ORDER {
            let place = &spec.places[field as usize];
            match place.as_constant() {
                Some(value) => site.set(field, value),
                None => {
                    let (base, path) = shortest(spec, &ORDER, field);
                    site.places[usize::from(site.places_used)] =
                        RawPlace::new(field, base, path, place);
                    site.places_used += 1;
                }
            }
        }
        if spec.places[Field::Comm as usize].as_constant().is_some() {
            site.flags &= !flag::USES;
        }
        site.pair();
        site
    }

    /// Two neighbours in memory are one read; the second moves behind the first.
    fn pair(&mut self) {
        let used = usize::from(self.places_used);
        let mut first = 1; // The communicator is also read alone.
        while first + 1 < used {
            let place = self.places[first];
            let depth = usize::from(place.flags & DEPTH);
            let neighbour = (first + 1..used).find(|&second| {
                let mut behind = place;
                if depth > 0 {
                    behind.offsets[depth - 1] += i32::from(place.width);
                }
                let other = &self.places[second];
                depth > 0
                    && matches!(place.width, 4 | 8)
                    && (other.base, other.width, other.offsets)
                        == (behind.base, behind.width, behind.offsets)
                    && other.flags & (DEPTH | RARE) == place.flags & (DEPTH | RARE)
            });
            if let Some(second) = neighbour {
                self.places[first + 1..=second].rotate_right(1);
                self.places[first].flags |= PAIRED;
                let spare = &mut self.places[first + 1];
                spare.base = BASE_SPARE;
                spare.flags &= SIGNED;
                first += 1;
            }
            first += 1;
        }
    }

    fn set(&mut self, field: Field, value: i32) {
        let record = &mut self.record;
        // The 64-bit fields are sign-extended, the small ones cut.
        match field {
            Field::Count => record.count = value as u64,
            Field::Comm => record.comm = value as u64,
            Field::Id => record.id = value as u64,
            Field::Aux => record.aux = value as u64,
            Field::Peer => record.peer = value,
            Field::Datatype => record.datatype = value as u8,
            Field::Reduction => record.reduction = value as u8,
        }
    }

    /// The bytes of the map's value.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes = std::mem::size_of::<RawSite>();
        // SAFETY: RawSite is repr(C) of integers without padding (its size is the sum of its
        // fields), so every byte is initialised.
        unsafe { std::slice::from_raw_parts((self as *const RawSite).cast(), bytes) }
    }
}

/// Base and path to a field: from the 64-bit field decoded before it that lies farthest on its
/// way, or from its own base.
fn shortest<'s>(spec: &'s Spec, order: &[Field], field: Field) -> (u8, &'s [i32]) {
    let place = &spec.places[field as usize];
    let before = order.iter().take_while(|f| **f as usize != field as usize);
    let mut best = (place.base(), place.path());
    for known in before.filter(|f| **f as usize <= Field::Aux as usize) {
        let on_the_way = &spec.places[*known as usize];
        let reads = on_the_way.path().len();
        let same_way = on_the_way.as_constant().is_none()
            && on_the_way.base() == place.base()
            && on_the_way.width() == 8
            && place.path().len() > reads
            && place.path()[..reads] == *on_the_way.path();
        // A count of bytes is divided after all else is decoded, so it may be a base too.
        if same_way && reads > 0 && place.path().len() - reads < best.1.len() {
            best = (BASE_FIELD + *known as u8, &place.path()[reads..]);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::abi::Arch;
    use super::super::table::rows;
    use super::*;

    fn encode(symbol: &str) -> RawSite {
        let (number, row) =
            rows().iter().enumerate().find(|(_, r)| r.symbol.contains(symbol)).unwrap();
        RawSite::new(&row.spec(Arch::X86_64, number as u32, false).unwrap())
    }

    fn reads(site: &RawSite) -> usize {
        let used = &site.places[..usize::from(site.places_used)];
        used.iter().map(|p| usize::from(p.flags & DEPTH)).sum()
    }

    #[test]
    fn constants_are_in_the_record_and_the_communicator_is_first() {
        let site = encode("ncclAllReduce");
        assert_eq!((site.record.peer, site.record.aux), (crate::wire::NO_PEER, 0));
        assert_eq!(site.places_used, 4);
        assert_eq!(site.places[0].field, Field::Comm as u8);
        assert_eq!(reads(&site), 0, "all but the stream is in registers");
        let start = encode("ncclGroupStart");
        assert_eq!((start.places_used, start.record.datatype), (0, crate::wire::NO_TYPE));
    }

    #[test]
    fn nothing_is_read_twice_and_neighbours_are_read_together() {
        let detail = encode("_ZN4gloo9allreduce");
        assert_eq!(reads(&detail), 4, "context, count with element size, tag, rank with size");
        let context = BASE_FIELD + Field::Comm as u8;
        let used = &detail.places[..usize::from(detail.places_used)];
        let shape: Vec<_> = used.iter().map(|p| (p.field, p.base, p.flags)).collect();
        let expected = [
            (Field::Comm, 0, 1),
            (Field::Count, 0, 1 | PAIRED),
            (Field::Id, BASE_SPARE, 0),
            (Field::Peer, 0, 1 | SIGNED),
            (Field::Aux, context, 1 | RARE),
        ];
        assert_eq!(shape, expected.map(|(field, base, flags)| (field as u8, base, flags)));
        assert_eq!(reads(&encode("_ZN4gloo9allgatherE")), 6);
    }
}
