//! The twin in Rust against `ncclring/ring.h`, as a C compiler sees it.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use rscore::ring::control::Mode;
use rscore::ring::layout::{self, clock, comm_state, flag, Comm, Header, Progress, Slot};
use rscore::wire::function;

use crate::support::{compile, repository};

/// (C expression, value here)
fn expected() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    macro_rules! fields {
        ($twin:ident, $c:literal, $($field:ident)*) => {
            all.push((format!("sizeof(struct {})", $c), size_of::<$twin>() as u64));
            $(
                let field = stringify!($field);
                let at = offset_of!($twin, $field) as u64;
                all.push((format!("offsetof(struct {}, {field})", $c), at));
                let size = size_of_field(|twin: &$twin| std::mem::size_of_val(&twin.$field));
                all.push((format!("sizeof(((struct {} *)0)->{field})", $c), size));
            )*
        };
    }
    fields!(Header, "stragd_ring_header", magic layout header_bytes comm_bytes comm_count
        slot_bytes slot_count comms_offset slots_offset total_bytes start_ns pid vendor clock api
        clock_hz library quirk chained mode control control_seen chained_name reserved head
        head_line order order_line dropped page);
    fields!(Progress, "stragd_ring_progress", enqueued started completed enqueued_ns started_ns
        completed_ns sequence bytes);
    fields!(Comm, "stragd_ring_comm", hash rank nranks nnodes state generation reserved born_ns
        ended_ns name progress);
    fields!(Slot, "stragd_ring_slot", stamp device_start device_stop host_ns bytes sequence peer
        order poll_delta comm flags function datatype channels algorithm);
    let numbers = [
        ("MAGIC", layout::MAGIC),
        ("LAYOUT", layout::LAYOUT.into()),
        ("COMMS", layout::COMMS.into()),
        ("SLOTS", layout::SLOTS.into()),
        ("FUNCTIONS", layout::FUNCTIONS as u64),
        ("BYTES", layout::BYTES as u64),
        ("DROPS", layout::DROPS as u64),
        ("WRITING(5)", layout::writing(5)),
        ("WRITTEN(5)", layout::written(5)),
        ("OTHER", layout::OTHER.into()),
        ("SEND", function::SEND.into()),
        ("RECV", function::RECV.into()),
        ("ALL_REDUCE", function::ALL_REDUCE.into()),
        ("REDUCE", function::REDUCE.into()),
        ("BROADCAST", function::BROADCAST.into()),
        ("REDUCE_SCATTER", function::REDUCE_SCATTER.into()),
        ("ALL_GATHER", function::ALL_GATHER.into()),
        ("ALL_TO_ALL", function::ALL_TO_ALL.into()),
        ("GATHER", function::GATHER.into()),
        ("SCATTER", function::SCATTER.into()),
        ("CLOCK_HOST", clock::HOST.into()),
        ("CLOCK_NS", clock::NS.into()),
        ("CLOCK_TICKS", clock::TICKS.into()),
        ("COMM_FREE", comm_state::FREE.into()),
        ("COMM_LIVE", comm_state::LIVE.into()),
        ("COMM_ENDED", comm_state::ENDED.into()),
        ("DEFAULT", Mode::Default as u64),
        ("OFF", Mode::Off as u64),
        ("PROGRESS", Mode::Progress as u64),
        ("FULL", Mode::Full as u64),
        ("NO_START", flag::NO_START.into()),
        ("NO_STOP", flag::NO_STOP.into()),
        ("HOST_TIME", flag::HOST_TIME.into()),
        ("GRAPH", flag::GRAPH.into()),
        ("FEW_CHANNELS", flag::FEW_CHANNELS.into()),
        ("GROUPED", flag::GROUPED.into()),
        ("SYMMETRIC", flag::SYMMETRIC.into()),
        ("AFTER_GAP", flag::AFTER_GAP.into()),
        ("COPY_ENGINE", flag::COPY_ENGINE.into()),
    ];
    all.extend(numbers.map(|(name, value)| (format!("STRAGD_RING_{name}"), value)));
    let names = [("VENDOR_UNKNOWN", "unknown"), ("NVIDIA", "nvidia"), ("AMD", "amd")];
    for (c, name) in names {
        let place = layout::VENDORS.iter().position(|vendor| *vendor == name).unwrap();
        all.push((format!("STRAGD_RING_{c}"), place as u64));
    }
    let causes =
        [("POOL", "pool"), ("COMM", "communicator"), ("CLAIM", "claim"), ("STALE", "stale")];
    for (c, name) in causes {
        let place = layout::DROP_NAMES.iter().position(|cause| *cause == name).unwrap();
        all.push((format!("STRAGD_RING_DROP_{c}"), place as u64));
    }
    all
}

fn size_of_field<T>(size: impl Fn(&T) -> usize) -> u64 {
    // SAFETY: every type here is integers only, for which all-zero is a value.
    size(&unsafe { std::mem::zeroed() }) as u64
}

#[test]
fn every_offset_size_and_number_is_that_of_the_c_header() {
    let expected = expected();
    let header = repository().join("ncclring/ring.h");
    let mut source =
        format!("#include \"{}\"\n#include <stddef.h>\n#include <stdio.h>\n", header.display());
    source.push_str("int main(void) {\n");
    for (expression, _) in &expected {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    source.push_str("return sizeof(STRAGD_RING_NAME); }\n");
    let base = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring-layout");
    let (c, program) = (base.with_extension("c"), base);
    std::fs::write(&c, source).unwrap();
    compile(&c, &program);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let values: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), expected.len());
    for ((expression, here), there) in expected.iter().zip(values) {
        assert_eq!(*here, there, "{expression}");
    }
    assert_eq!(output.status.code(), Some(layout::NAME.len() as i32 + 1));
}
