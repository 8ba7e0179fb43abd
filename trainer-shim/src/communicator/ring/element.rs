//! The types of elements, and how two become one.

use super::heading::ElementType;
use crate::communicator::buffer::Reduction;

pub(super) const ELEMENT_BYTES_MAX: usize = 8;

/// A number that travels in little-endian bytes.
pub(super) trait Element: Copy {
    const TYPE: ElementType;
    const BYTES: usize;

    /// Into exactly [`Element::BYTES`] bytes.
    fn put(self, bytes: &mut [u8]);

    /// From exactly [`Element::BYTES`] bytes.
    fn get(bytes: &[u8]) -> Self;

    /// Combines the value of the ranks before with the one here: in this order.
    fn combine(reduction: Reduction, before: Self, here: Self) -> Self;
}

macro_rules! element {
    ($type:ty, $name:ident, $add:expr) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
            const BYTES: usize = size_of::<$type>();

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> $type {
                <$type>::from_le_bytes(bytes.try_into().expect("as many bytes as it has"))
            }

            fn combine(reduction: Reduction, before: $type, here: $type) -> $type {
                match reduction {
                    Reduction::Sum => $add(before, here),
                    Reduction::Min => before.min(here),
                    Reduction::Max => before.max(here),
                }
            }
        }
    };
}

element!(f32, F32, |before: f32, here: f32| before + here);
element!(f64, F64, |before: f64, here: f64| before + here);
element!(i64, I64, i64::wrapping_add);
