//! A field's value that has placeholders, and the same with values in their places.

use std::ops::Range;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use zeroize::Zeroizing;

use crate::basic;
use crate::value::SecretValue;

/// A field's value that has placeholders.
pub(crate) struct Marked<'v> {
    text: Text<'v>,
    /// The places of placeholders, in their order, and the numbers of their secrets.
    places: Vec<(Range<usize>, usize)>,
}

enum Text<'v> {
    /// The value itself.
    Plain(&'v [u8]),
    /// The credentials of a Basic one.
    Basic(Zeroizing<Vec<u8>>),
}

impl<'v> Marked<'v> {
    /// Finds placeholders in a value: as it is, or else in Basic credentials. `None`: it has none.
    pub(crate) fn of(placeholders: &AhoCorasick, value: &'v [u8]) -> Option<Self> {
        let places = |text: &[u8]| -> Vec<(Range<usize>, usize)> {
            let found = placeholders.find_iter(text);
            found.map(|found| (found.range(), found.pattern().as_usize())).collect()
        };
        let (mut text, mut found) = (Text::Plain(value), places(value));
        if found.is_empty() {
            let credentials = basic::decode(value)?;
            found = places(&credentials);
            text = Text::Basic(credentials);
        }
        (!found.is_empty()).then_some(Self { text, places: found })
    }

    /// The numbers of the secrets.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = usize> {
        self.places.iter().map(|(_, nth)| *nth)
    }

    /// Writes the value with secrets in the places of placeholders.
    pub(crate) fn filled(&self, values: &[Arc<SecretValue>]) -> Zeroizing<Vec<u8>> {
        let text: &[u8] = match &self.text {
            Text::Plain(text) => text,
            Text::Basic(credentials) => credentials,
        };
        let added =
            self.secrets().filter_map(|nth| values.get(nth)).map(|value| value.bytes().len());
        // A buffer that grows would leave copies of what is in it.
        let mut filled = Zeroizing::new(Vec::with_capacity(text.len() + added.sum::<usize>()));
        let mut from = 0;
        for (place, nth) in &self.places {
            filled.extend_from_slice(&text[from..place.start]);
            filled.extend_from_slice(values.get(*nth).map_or(&[], |value| value.bytes()));
            from = place.end;
        }
        filled.extend_from_slice(&text[from..]);
        match &self.text {
            Text::Plain(_) => filled,
            Text::Basic(_) => basic::encode(&filled),
        }
    }
}
