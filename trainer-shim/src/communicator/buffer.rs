//! Values of collectives.

/// Elements in host memory. The communicator owns them while the work runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Buffer {
    /// Floating-point numbers of 32 bits.
    F32(Vec<f32>),
    /// Floating-point numbers of 64 bits.
    F64(Vec<f64>),
    /// Integers; sums wrap around.
    I64(Vec<i64>),
}

impl Buffer {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Buffer::F32(elements) => elements.len(),
            Buffer::F64(elements) => elements.len(),
            Buffer::I64(elements) => elements.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(elements: Vec<f32>) -> Buffer {
        Buffer::F32(elements)
    }
}

impl From<Vec<f64>> for Buffer {
    fn from(elements: Vec<f64>) -> Buffer {
        Buffer::F64(elements)
    }
}

impl From<Vec<i64>> for Buffer {
    fn from(elements: Vec<i64>) -> Buffer {
        Buffer::I64(elements)
    }
}

/// How elements of two members become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum of the two.
    Sum,
    /// The smaller of the two.
    Min,
    /// The larger of the two.
    Max,
}
