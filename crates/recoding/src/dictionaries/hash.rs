//! SHA-256 of a dictionary's decoded content, which is its name.

use aws_lc_rs::digest;
use eyelet_compress::dictionary::Hash;

/// The hash of decoded content.
pub(crate) fn hash(content: &[u8]) -> Hash {
    let mut hash = [0; 32];
    let digest = digest::digest(&digest::SHA256, content);
    for (to, from) in hash.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    Hash(hash)
}
