//! Registers of one and of four numbers, for a loop that is written once.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use super::block::Wide;

/// Some neighbours of a `Wide`. Each operation is that of f64, rounded alike.
pub(super) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// What holds of each.
    type Mask: Copy + BitAnd<Output = Self::Mask> + BitOr<Output = Self::Mask>;
    /// How many they are.
    const LANES: usize;

    fn splat(value: f64) -> Self;
    /// Those from `lane` on.
    fn read(wide: &Wide<f64>, lane: usize) -> Self;
    fn write(self, wide: &mut Wide<f64>, lane: usize);
    fn sqrt(self) -> Self;
    /// To the nearest f32.
    fn round(self) -> Self;
    /// False where one is not a number, as `up_to` is.
    fn below(self, other: Self) -> Self::Mask;
    fn up_to(self, other: Self) -> Self::Mask;
    /// `self` where `mask` holds.
    fn or(self, mask: Self::Mask, other: Self) -> Self;
    /// One bit for each, the first one's is the lowest.
    fn bits(mask: Self::Mask) -> u32;
    /// The other way round.
    fn mask(bits: u32) -> Self::Mask;

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        other.or(other.below(self), self)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        other.or(self.below(other), self)
    }
}

impl Vector for f64 {
    type Mask = bool;
    const LANES: usize = 1;

    #[inline(always)]
    fn splat(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn read(wide: &Wide<f64>, lane: usize) -> f64 {
        wide[lane]
    }
    #[inline(always)]
    fn write(self, wide: &mut Wide<f64>, lane: usize) {
        wide[lane] = self;
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn round(self) -> f64 {
        f64::from(self as f32)
    }
    #[inline(always)]
    fn below(self, other: f64) -> bool {
        self < other
    }
    #[inline(always)]
    fn up_to(self, other: f64) -> bool {
        self <= other
    }
    #[inline(always)]
    fn or(self, mask: bool, other: f64) -> f64 {
        if mask {
            self
        } else {
            other
        }
    }
    #[inline(always)]
    fn bits(mask: bool) -> u32 {
        u32::from(mask)
    }
    #[inline(always)]
    fn mask(bits: u32) -> bool {
        bits & 1 != 0
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx {
    use std::arch::x86_64::*;
    use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

    use super::super::block::{Wide, WIDE};
    use super::Vector;

    /// Four numbers. Only code that has found AVX may make one.
    #[derive(Clone, Copy)]
    pub struct Four(__m256d);

    #[derive(Clone, Copy)]
    pub struct Mask(__m256d);

    /// An operator that is one instruction.
    macro_rules! operator {
        ($of:ident, $name:ident, $method:ident, $instruction:ident) => {
            impl $name for $of {
                type Output = $of;
                #[inline(always)]
                fn $method(self, other: $of) -> $of {
                    // SAFETY: there is AVX where there is a Four.
                    $of(unsafe { $instruction(self.0, other.0) })
                }
            }
        };
    }
    operator!(Four, Add, add, _mm256_add_pd);
    operator!(Four, Sub, sub, _mm256_sub_pd);
    operator!(Four, Mul, mul, _mm256_mul_pd);
    operator!(Four, Div, div, _mm256_div_pd);
    operator!(Mask, BitAnd, bitand, _mm256_and_pd);
    operator!(Mask, BitOr, bitor, _mm256_or_pd);

    impl Vector for Four {
        type Mask = Mask;
        const LANES: usize = 4;

        #[inline(always)]
        fn splat(value: f64) -> Four {
            // SAFETY: there is AVX where a Four is made.
            Four(unsafe { _mm256_set1_pd(value) })
        }
        #[inline(always)]
        fn read(wide: &Wide<f64>, lane: usize) -> Four {
            assert!(lane + 4 <= WIDE);
            // SAFETY: there is AVX where a Four is made, and these four lie within `wide`.
            Four(unsafe { _mm256_loadu_pd(wide.as_ptr().add(lane)) })
        }
        #[inline(always)]
        fn write(self, wide: &mut Wide<f64>, lane: usize) {
            assert!(lane + 4 <= WIDE);
            // SAFETY: there is AVX where there is a Four, and these four lie within `wide`.
            unsafe { _mm256_storeu_pd(wide.as_mut_ptr().add(lane), self.0) }
        }
        #[inline(always)]
        fn sqrt(self) -> Four {
            // SAFETY: there is AVX where there is a Four.
            Four(unsafe { _mm256_sqrt_pd(self.0) })
        }
        #[inline(always)]
        fn round(self) -> Four {
            // SAFETY: there is AVX where there is a Four.
            Four(unsafe { _mm256_cvtps_pd(_mm256_cvtpd_ps(self.0)) })
        }
        #[inline(always)]
        fn below(self, other: Four) -> Mask {
            // SAFETY: there is AVX where there is a Four.
            Mask(unsafe { _mm256_cmp_pd::<_CMP_LT_OQ>(self.0, other.0) })
        }
        #[inline(always)]
        fn up_to(self, other: Four) -> Mask {
            // SAFETY: there is AVX where there is a Four.
            Mask(unsafe { _mm256_cmp_pd::<_CMP_LE_OQ>(self.0, other.0) })
        }
        #[inline(always)]
        fn or(self, mask: Mask, other: Four) -> Four {
            // SAFETY: there is AVX where there is a Four.
            Four(unsafe { _mm256_blendv_pd(other.0, self.0, mask.0) })
        }
        #[inline(always)]
        fn bits(mask: Mask) -> u32 {
            // SAFETY: there is AVX where there is a Four.
            unsafe { _mm256_movemask_pd(mask.0) as u32 }
        }
        #[inline(always)]
        fn mask(bits: u32) -> Mask {
            let one = |lane: u32| f64::from(bits >> lane & 1);
            // SAFETY: there is AVX where a Mask is made.
            let ones = Four(unsafe { _mm256_setr_pd(one(0), one(1), one(2), one(3)) });
            Four::splat(0.5).below(ones)
        }
    }
}
