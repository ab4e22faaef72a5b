//! The plugin's table of library versions: why a ring does not record everything.

/// The rows, as the plugin was built with them; see there what they say.
const TABLE: &str = include_str!("../../../ncclring/versions.h");

/// Reason of row `quirk` (from 1; a ring says which one decided its mode). `None` where there is
/// no such row: none decided, or the plugin is of another version.
#[must_use]
pub fn reason(quirk: u32) -> Option<&'static str> {
    let place = usize::try_from(quirk).ok()?.checked_sub(1)?;
    let row = TABLE.lines().filter(|line| line.starts_with("QUIRK(")).nth(place)?;
    let text = row.get(row.find('"')? + 1..)?;
    text.rfind('"').and_then(|end| text.get(..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_reason() {
        let rows = TABLE.matches("\nQUIRK(").count() as u32;
        assert!(rows >= 5);
        for row in 1..=rows {
            let reason = reason(row).unwrap();
            assert!(reason.contains("NCCL") || reason.contains("RCCL"), "{reason}");
            assert!(!reason.contains('"'));
        }
        assert_eq!((reason(0), reason(rows + 1), reason(u32::MAX)), (None, None, None));
    }
}
