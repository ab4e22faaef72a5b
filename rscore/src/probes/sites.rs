//! The `sites` map as user space keeps it: equal specs share a row, unused rows are reused.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags};

use super::encode::RawSite;
use super::error::Error;
use super::site::{Spec, SITES_MAX};

/// Which spec stands in which row, and how many attached sites use it.
#[derive(Default)]
pub(super) struct SiteTable {
    rows: HashMap<Spec, (u32, usize)>,
    free: Vec<u32>,
    used: u32,
}

impl SiteTable {
    /// The row of `spec`, written to the map if it is new; one more site uses it.
    ///
    /// # Errors
    /// The map is full.
    pub fn keep(&mut self, spec: &Spec, map: &impl MapCore) -> Result<u32, Error> {
        if let Some((index, users)) = self.rows.get_mut(spec) {
            *users += 1;
            return Ok(*index);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.used as usize) < SITES_MAX => {
                self.used += 1;
                self.used - 1
            }
            None => return Err(Error::new(format!("{SITES_MAX} different probe sites: no more"))),
        };
        if let Err(error) =
            map.update(&index.to_ne_bytes(), RawSite::new(spec).as_bytes(), MapFlags::ANY)
        {
            self.free.push(index);
            return Err(Error::from_bpf("cannot write a probe site", &error));
        }
        self.rows.insert(*spec, (index, 1));
        Ok(index)
    }

    /// Sites with these specs are detached: the counterpart of one `keep` each.
    pub fn release(&mut self, specs: &[Spec]) {
        for spec in specs {
            if let Some((index, users)) = self.rows.get_mut(spec) {
                *users -= 1;
                if *users == 0 {
                    self.free.push(*index);
                    self.rows.remove(spec);
                }
            }
        }
    }
}
