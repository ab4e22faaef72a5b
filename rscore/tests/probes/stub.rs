//! Every row of the table against compiled C, and what the program keeps on the way.

use std::process::Command;

use rscore::probes::{Kinds, Method, Options};
use rscore::wire::{function, what};

use crate::support::*;

const BOTH: Kinds = Kinds { nccl: true, rccl: true, gloo: false };

fn every_call_arrives(method: Method) {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::with_method(method);
    assert_eq!(rig.probes.method(), method);
    let (link, plan) = rig.attach(&library, BOTH);
    assert_eq!((plan.refused.len(), plan.missing.len()), (0, 0), "{plan:?}");
    let (calls, absent) = parse_calls(&run(Command::new(&driver).arg(&library)));
    assert_eq!(absent, Vec::<String>::new());
    assert_eq!(calls.len(), plan.sites.len(), "every row has a call in calls.h");
    rig.collect();
    let tgid = calls[0].tgid;
    assert_delivered(&calls, &rig.of(tgid));
    let times: Vec<u64> = rig.of(tgid).iter().map(|e| e.time_ns).collect();
    assert!(times.windows(2).all(|w| w[0] <= w[1]), "both rings merged by time");
    assert!(rig.of(tgid).iter().all(|e| e.link == link.0));
    let counters = rig.probes.counters().unwrap();
    assert_eq!(counters.events.iter().sum::<u64>(), calls.len() as u64);
    assert_eq!((counters.lost_total(), counters.read_failed, counters.bad_site), (0, 0, 0));
    println!("{}: {} rows, every field right", method.name(), calls.len());
}

#[test]
fn every_row_decodes_its_arguments_with_multi_links() {
    every_call_arrives(Method::Multi);
}

#[test]
fn every_row_decodes_its_arguments_with_perf_events() {
    every_call_arrives(Method::Perf);
}
