//! Headings that the members of a ring send their neighbour before the elements
//! of an operation: a pair that disagrees fails, and sums nothing.

use super::wire::Fields;
use crate::communicator::buffer::Reduction;

pub(super) const HEADING_BYTES: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// The end of an initialisation: all are connected.
    Initialise,
    AllReduce(Reduction),
    Broadcast {
        root: u32,
    },
    Barrier,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementType {
    F32,
    F64,
    I64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heading {
    /// Which operation of this communicator, from 0.
    pub(super) sequence: u64,
    pub(super) operation: Operation,
    pub(super) element_type: ElementType,
    pub(super) elements: u64,
}

impl Heading {
    pub(super) fn encode(&self) -> [u8; HEADING_BYTES] {
        let (operation, root, reduction) = match self.operation {
            Operation::Initialise => (0, 0, 0),
            Operation::AllReduce(reduction) => (1, 0, reduction_byte(reduction)),
            Operation::Broadcast { root } => (2, root, 0),
            Operation::Barrier => (3, 0, 0),
            Operation::Close => (4, 0, 0),
        };
        let element_type = match self.element_type {
            ElementType::F32 => 0,
            ElementType::F64 => 1,
            ElementType::I64 => 2,
        };
        let mut bytes = [0; HEADING_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.elements.to_le_bytes());
        bytes[16..20].copy_from_slice(&root.to_le_bytes());
        bytes[20..23].copy_from_slice(&[operation, element_type, reduction]);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Heading> {
        let mut fields = Fields::new(bytes);
        let (sequence, elements, root) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let [operation, element_type, reduction, zero] = fields.take()?;
        let operation = match (operation, root, reduction) {
            (0, 0, 0) => Operation::Initialise,
            (1, 0, 0) => Operation::AllReduce(Reduction::Sum),
            (1, 0, 1) => Operation::AllReduce(Reduction::Min),
            (1, 0, 2) => Operation::AllReduce(Reduction::Max),
            (2, root, 0) => Operation::Broadcast { root },
            (3, 0, 0) => Operation::Barrier,
            (4, 0, 0) => Operation::Close,
            _ => return None,
        };
        let element_type = match element_type {
            0 => ElementType::F32,
            1 => ElementType::F64,
            2 => ElementType::I64,
            _ => return None,
        };
        let heading = Heading { sequence, operation, element_type, elements };
        (zero == 0 && fields.rest().is_empty()).then_some(heading)
    }
}

fn reduction_byte(reduction: Reduction) -> u8 {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Min => 1,
        Reduction::Max => 2,
    }
}

impl std::fmt::Display for Heading {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let elements = match self.element_type {
            ElementType::F32 => "f32",
            ElementType::F64 => "f64",
            ElementType::I64 => "i64",
        };
        match self.operation {
            Operation::Initialise => formatter.write_str("the initialisation"),
            Operation::AllReduce(reduction) => {
                let reduction = match reduction {
                    Reduction::Sum => "sum",
                    Reduction::Min => "min",
                    Reduction::Max => "max",
                };
                write!(formatter, "all-reduce ({reduction}) of {} {elements}", self.elements)
            }
            Operation::Broadcast { root } => {
                write!(formatter, "broadcast of {} {elements} from rank {root}", self.elements)
            }
            Operation::Barrier => formatter.write_str("barrier"),
            Operation::Close => formatter.write_str("close"),
        }?;
        write!(formatter, " (operation {})", self.sequence)
    }
}
