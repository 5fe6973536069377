//! What a rank does with a communicator, as it is told to the other ranks: they compare it with their own call
//! before any data are used, and name it in messages.

use crate::types::NVTEDType;
use num_traits::FromPrimitive;
use std::fmt::{self, Display};

/// Words of 8 bytes that a call takes in shared memory.
pub const WORDS: usize = 6 + NAME / 8;

/// Bytes of a name that are compared and printed.
const NAME: usize = 64;

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, num_derive::FromPrimitive)]
pub enum Operation {
    Create = 1,
    Split,
    Barrier,
    AllGather,
    ReduceScatter,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
}

impl Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Create => "create",
            Operation::Split => "split",
            Operation::Barrier => "barrier",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllReduce => "all_reduce",
            Operation::AllToAll => "all_to_all",
            Operation::Broadcast => "broadcast",
            Operation::Exchange => "exchange",
        })
    }
}

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Max,
}

/// One call of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Calls of all ranks are counted from 1, the exchanges of a pair for themselves; 0: there was none.
    pub number: u64,
    pub operation: Option<Operation>,
    pub dtype: NVTEDType,
    pub count: usize,
    /// The root of a broadcast.
    pub root: usize,
    pub reduction: Reduction,
    pub name: [u8; NAME],
}

impl Call {
    pub fn new(operation: Operation, dtype: NVTEDType, count: usize) -> Self {
        let (root, reduction, name) = (0, Reduction::Sum, [0; NAME]);
        Self { number: 0, operation: Some(operation), dtype, count, root, reduction, name }
    }

    /// The same with a name of what is exchanged, of which the end is kept if it is long: names of layers differ there.
    pub fn named(mut self, name: &str) -> Self {
        let bytes = name.as_bytes();
        let tail = &bytes[bytes.len().saturating_sub(NAME)..];
        self.name[..tail.len()].copy_from_slice(tail);
        self
    }

    /// Bytes of an element, which is none of 4 bits.
    pub fn dtype_bytes(&self) -> usize {
        self.dtype.bits() / 8
    }

    /// Bytes of the elements that the call counts.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype_bytes()
    }

    pub fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let operation = self.operation.map_or(0, |operation| operation as u64);
        let (dtype, reduction) = (self.dtype as u64, self.reduction as u64);
        let head = [self.number, operation, dtype, self.count as u64, self.root as u64, reduction];
        words[..6].copy_from_slice(&head);
        for (word, bytes) in words[6..].iter_mut().zip(self.name.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    pub fn of_words(words: &[u64; WORDS]) -> Self {
        let mut name = [0; NAME];
        for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(&words[6..]) {
            *bytes = word.to_ne_bytes();
        }
        Self {
            number: words[0],
            operation: Operation::from_u64(words[1]),
            dtype: NVTEDType::from_u64(words[2]).unwrap_or(NVTEDType::kNVTEByte),
            count: words[3] as usize,
            root: words[4] as usize,
            reduction: if words[5] == 0 { Reduction::Sum } else { Reduction::Max },
            name,
        }
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }

    /// The first field in which the calls of two ranks differ, with both values.
    pub fn difference(&self, rank: usize, other: &Self, other_rank: usize) -> Option<String> {
        let differs = |what: &str, own: &dyn Display, others: &dyn Display| {
            Some(format!("{what}: rank {rank} has {own}, rank {other_rank} has {others}"))
        };
        if (self.operation, self.number) != (other.operation, other.number) {
            return differs("operation", self, other);
        }
        if self.name != other.name {
            return differs("name", &format!("{:?}", self.name()), &format!("{:?}", other.name()));
        }
        if self.dtype != other.dtype {
            let [own, others] = [self, other].map(|call| format!("{:?}", call.dtype));
            return differs("dtype", &own, &others);
        }
        if self.count != other.count {
            return differs("count", &self.count, &other.count);
        }
        if self.root != other.root {
            return differs("root", &self.root, &other.root);
        }
        if self.reduction != other.reduction {
            let [own, others] = [self, other].map(|call| format!("{:?}", call.reduction));
            return differs("reduction", &own, &others);
        }
        None
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Some(operation) => write!(f, "{operation} #{}", self.number)?,
            None => f.write_str("no call")?,
        }
        match self.name() {
            name if name.is_empty() => Ok(()),
            name => write!(f, " ({name})"),
        }
    }
}
