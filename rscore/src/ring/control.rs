//! The control word: what the daemon asks of a plugin.

/// How much a plugin records; values of `enum stragd_ring_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The plugin decides by the library's version.
    #[default]
    Default = 0,
    Off = 1,
    /// The communicator table only.
    Progress = 2,
    Full = 3,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Default, Mode::Off, Mode::Progress, Mode::Full];

    /// `default`, `off`, `progress` or `full`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::Off => "off",
            Mode::Progress => "progress",
            Mode::Full => "full",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The mode of this number, which a job may have written.
    #[must_use]
    pub fn numbered(number: u64) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| *mode as u64 == number)
    }
}

/// Mode, sampling and size floor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub mode: Mode,
    /// Of every `sample` blocks of 4096 consecutive collectives the first is recorded; 0 and 1:
    /// all.
    pub sample: u16,
    /// log2 of the smallest message in bytes that gets a slot; 0: all.
    pub floor_log2: u8,
}

impl Control {
    /// The word in the header.
    #[must_use]
    pub fn word(self) -> u64 {
        self.mode as u64 | u64::from(self.floor_log2) << 8 | u64::from(self.sample) << 16
    }

    /// What a word says; a mode that nobody knows is the default.
    #[must_use]
    pub fn of_word(word: u64) -> Control {
        Control {
            mode: Mode::numbered(word & 0xff).unwrap_or_default(),
            sample: (word >> 16) as u16,
            floor_log2: (word >> 8) as u8,
        }
    }

    /// Whether some collectives are left out on purpose.
    #[must_use]
    pub fn thins(self) -> bool {
        self.sample > 1 || self.floor_log2 > 0
    }

    /// The size floor in bytes, 0 where there is none.
    #[must_use]
    pub fn floor_bytes(self) -> u64 {
        match self.floor_log2 {
            0 => 0,
            log2 => 1u64.checked_shl(log2.into()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_asked() {
        for mode in Mode::ALL {
            let control = Control { mode, sample: 500, floor_log2: 13 };
            assert_eq!(Control::of_word(control.word()), control);
            assert_eq!(Mode::named(mode.name()), Some(mode));
        }
        assert_eq!(Control { mode: Mode::Full, sample: 2, floor_log2: 3 }.word(), 0x2_0303);
    }

    #[test]
    fn any_word_is_read() {
        for word in [u64::MAX, 0xff00, 0x77, 1 << 63] {
            let control = Control::of_word(word);
            assert!(control.floor_bytes() == 0 || control.floor_bytes() >= 2);
        }
        assert_eq!(Control::of_word(0xff).mode, Mode::Default);
    }
}
