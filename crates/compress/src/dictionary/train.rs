//! Trains a dictionary from samples of response bodies.

/// The reason why there is no dictionary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainFault {
    /// The trainer needs several samples with common content.
    #[error("{0} samples are too few, or have nothing in common: give more responses of one kind")]
    Samples(usize),
    /// The library's message.
    #[error("the trainer: {0}")]
    Trainer(&'static str),
}

/// Returns at most `bytes_max` bytes of raw content, the most useful last. The tables at the start
/// of the trainer's output are cut off: clients take dictionaries as content only (RFC 9842 section
/// 2.1.4).
///
/// # Errors
/// If there are too few samples, or they have too much or too little in common.
pub fn train(samples: &[Vec<u8>], bytes_max: usize) -> Result<Vec<u8>, TrainFault> {
    if samples.len() < SAMPLES_MIN {
        return Err(TrainFault::Samples(samples.len()));
    }
    let sizes: Vec<usize> = samples.iter().map(Vec::len).collect();
    let mut dictionary = Vec::with_capacity(bytes_max + TABLES_BYTES_MAX);
    let joined = samples.concat();
    zstd_safe::train_from_buffer(&mut dictionary, &joined, &sizes)
        .map_err(|code| TrainFault::Trainer(zstd_safe::get_error_name(code)))?;
    let content = content(&dictionary).ok_or(TrainFault::Samples(samples.len()))?;
    Ok(content.get(content.len().saturating_sub(bytes_max)..).unwrap_or(content).to_vec())
}

/// The content of a zstd dictionary with tables (RFC 8878 section 5). Their exact length is
/// entropy-coded, but the trainer never writes more than [`TABLES_BYTES_MAX`]. Content that is cut
/// off with them is the least useful: the best is at the end.
fn content(dictionary: &[u8]) -> Option<&[u8]> {
    dictionary.get(TABLES_BYTES_MAX..).filter(|content| content.len() >= CONTENT_BYTES_MIN)
}

/// Fewest samples; the trainer's documentation advises tens at least.
const SAMPLES_MIN: usize = 8;
/// Fewest bytes of content: less would save less than the fields that announce it cost.
const CONTENT_BYTES_MIN: usize = 256;
/// The size of the trainer's own buffer for its tables.
const TABLES_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::coder::zstd;

    #[test]
    fn a_trained_dictionary_helps_and_is_raw() {
        let sample = |n: u32| {
            let name = n.wrapping_mul(2_654_435_761);
            format!(
                "{{\"kind\":\"reading\",\"sensor\":{{\"identifier\":\"{name:08x}\",\
                 \"place\":\"hall {n}\"}},\"unit\":\"celsius\",\"value\":{}}}",
                n % 40
            )
        };
        let samples: Vec<Vec<u8>> = (0..400).map(|n| sample(n).into_bytes()).collect();
        let trained = train(&samples, 4 << 10).unwrap();
        assert!(trained.len() <= 4 << 10);
        assert!(zstd::is_raw(&trained));
        let fresh = sample(7_777);
        let plain = zstd::delta(b"", fresh.as_bytes(), 9).unwrap();
        let with = zstd::delta(&trained, fresh.as_bytes(), 9).unwrap();
        assert!(with.len() * 2 < plain.len(), "{} of {}", with.len(), plain.len());
        assert_eq!(train(&samples[..2], 4 << 10), Err(TrainFault::Samples(2)));
    }
}
