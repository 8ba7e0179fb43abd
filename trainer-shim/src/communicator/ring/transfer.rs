//! One operation of one rank as two streams of bytes. Sans-IO: bytes to send are
//! taken, and received ones handed in, in pieces of any size.

use std::collections::VecDeque;
use std::ops::Range;

use super::element::{ELEMENT_BYTES_MAX, Element};
use super::heading::{HEADING_BYTES, Heading};
use super::plan::{Arrival, Plan};
use crate::communicator::buffer::Reduction;

/// Most bytes that are encoded or received at once.
pub(super) const CHUNK_BYTES: usize = 128 * 1024;

/// An operation in progress on the elements of a caller.
pub(super) struct Transfer<'a, T> {
    elements: &'a mut [T],
    reduction: Reduction,
    heading: Heading,
    /// Elements that may be sent but are not encoded.
    sendable: usize,
    send: VecDeque<Range<usize>>,
    /// Encoded bytes; the first `sent` are gone.
    outgoing: Vec<u8>,
    sent: usize,
    receive: VecDeque<(Range<usize>, Arrival)>,
    /// Bytes that are still to come: of the heading, then of elements.
    heading_missing: usize,
    elements_missing: usize,
    /// The beginning of a heading or an element, whose rest has not come.
    partial: Vec<u8>,
}

/// The neighbour before is in another operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OtherOperation {
    /// None: what came cannot be understood.
    pub(super) theirs: Option<Heading>,
}

impl<'a, T: Element> Transfer<'a, T> {
    pub(super) fn new(
        plan: Plan,
        heading: Heading,
        reduction: Reduction,
        elements: &'a mut [T],
    ) -> Transfer<'a, T> {
        let heading_missing = if plan.receive.is_some() { HEADING_BYTES } else { 0 };
        let outgoing = if plan.send.is_some() { heading.encode().to_vec() } else { Vec::new() };
        let receive: VecDeque<_> = plan.receive.unwrap_or_default().into();
        Transfer {
            elements,
            reduction,
            heading,
            sendable: plan.head_start,
            send: plan.send.unwrap_or_default().into(),
            outgoing,
            sent: 0,
            elements_missing: receive.iter().map(|(span, _)| span.len()).sum(),
            receive,
            heading_missing,
            partial: Vec::with_capacity(HEADING_BYTES),
        }
    }

    pub(super) fn heading(&self) -> Heading {
        self.heading
    }

    pub(super) fn outgoing(&mut self) -> &[u8] {
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
            self.encode();
        }
        &self.outgoing[self.sent..]
    }

    /// So many bytes of it are gone.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn encode(&mut self) {
        while let Some(span) = self.send.front_mut() {
            let space = (CHUNK_BYTES - self.outgoing.len()) / T::BYTES;
            let count = span.len().min(space).min(self.sendable);
            let before = self.outgoing.len();
            self.outgoing.resize(before + count * T::BYTES, 0);
            let places = self.outgoing[before..].chunks_exact_mut(T::BYTES);
            for (element, place) in self.elements[span.start..].iter().zip(places) {
                element.put(place);
            }
            span.start += count;
            self.sendable -= count;
            if span.start < span.end {
                return;
            }
            self.send.pop_front();
        }
    }

    /// How many bytes may be handed in: no byte of the next operation.
    pub(super) fn wanted(&self) -> usize {
        match self.heading_missing {
            0 => (self.elements_missing * T::BYTES - self.partial.len()).min(CHUNK_BYTES),
            heading => heading,
        }
    }

    /// Takes what was received, at most as much as is wanted.
    pub(super) fn received(&mut self, mut bytes: &[u8]) -> Result<(), OtherOperation> {
        if self.heading_missing > 0 {
            let (heading, rest) = bytes.split_at(self.heading_missing.min(bytes.len()));
            self.partial.extend_from_slice(heading);
            self.heading_missing -= heading.len();
            bytes = rest;
            if self.heading_missing > 0 {
                return Ok(());
            }
            let theirs = Heading::decode(&self.partial);
            if theirs != Some(self.heading) {
                return Err(OtherOperation { theirs });
            }
            self.partial.clear();
        }
        if !self.partial.is_empty() {
            let (rest_of_element, rest) =
                bytes.split_at((T::BYTES - self.partial.len()).min(bytes.len()));
            self.partial.extend_from_slice(rest_of_element);
            bytes = rest;
            if self.partial.len() < T::BYTES {
                return Ok(());
            }
            let mut element = [0; ELEMENT_BYTES_MAX];
            element[..T::BYTES].copy_from_slice(&self.partial);
            self.partial.clear();
            self.take(&element[..T::BYTES]);
        }
        let whole = bytes.len() - bytes.len() % T::BYTES;
        self.take(&bytes[..whole]);
        self.partial.extend_from_slice(&bytes[whole..]);
        Ok(())
    }

    /// Whole elements, put where the plan has them.
    fn take(&mut self, mut bytes: &[u8]) {
        self.elements_missing -= bytes.len() / T::BYTES;
        self.sendable += bytes.len() / T::BYTES;
        let reduction = self.reduction;
        while let Some((span, arrival)) = self.receive.front_mut() {
            let count = span.len().min(bytes.len() / T::BYTES);
            let (now, rest) = bytes.split_at(count * T::BYTES);
            let place = &mut self.elements[span.start..span.start + count];
            let arrived = now.chunks_exact(T::BYTES).map(T::get);
            match arrival {
                Arrival::Replace => {
                    place.iter_mut().zip(arrived).for_each(|(here, before)| *here = before);
                }
                Arrival::Combine => place.iter_mut().zip(arrived).for_each(|(here, before)| {
                    *here = T::combine(reduction, before, *here);
                }),
            }
            span.start += count;
            bytes = rest;
            if span.start < span.end {
                return;
            }
            self.receive.pop_front();
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.sent == self.outgoing.len() && self.send.is_empty() && self.wanted() == 0
    }
}
