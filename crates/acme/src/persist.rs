//! The DNS record of DNS-PERSIST-01 (draft-ietf-acme-dns-persist): the record that an account needs
//! for a wildcard, and the fault of those that the DNS has.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Bytes of a string of a TXT record (RFC 1035 section 3.3).
const STRING_BYTES_MAX: usize = 255;
/// Seconds for which resolvers keep the record. A CA may rely on it no longer than that.
const TTL_SECS: u32 = 3600;

/// The record that lets one account have certificates for a domain and all names below it.
pub struct PersistentRecord {
    /// Its owner, such as `_validation-persist.app.example`.
    pub name: String,
    /// The names of the CA, of which a record has one.
    issuers: Vec<String>,
    account: String,
}

/// The reason why no record of the DNS lets the account have a certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistentRecordFault {
    /// No record is for this CA.
    #[error("it is missing")]
    Missing,
    /// The record is for another account at this CA.
    #[error("it is for another account, {0}")]
    OtherAccount(String),
    /// The record has no `policy=wildcard`.
    #[error("it lacks `policy=wildcard`")]
    NoWildcard,
    /// The time of `persistUntil` is over.
    #[error("its persistUntil={0} is over")]
    Over(i64),
    /// The record does not have the form that RFC 8659 section 4.2 gives it.
    #[error("it is malformed: {0}")]
    Malformed(String),
}

impl PersistentRecord {
    /// The record for a domain without `*.`.
    ///
    /// # Errors
    /// If the server has not said by which name it goes, or a record cannot have that, or the
    /// account's URL.
    pub fn new(domain: &str, issuers: &[String], account: &str) -> Result<Self, String> {
        if issuers.is_empty() {
            let why = "its directory has no `caaIdentities`, so no record for DNS-PERSIST-01 can \
                name it: set `dns_hook`";
            return Err(why.into());
        }
        if account.is_empty() || !account.bytes().all(is_of_value) {
            let account = printable(account);
            let why = format!("no record for DNS-PERSIST-01 can have its account's URL {account}");
            return Err(why);
        }
        let name = format!("_validation-persist.{domain}");
        Ok(Self { name, issuers: issuers.to_vec(), account: account.to_owned() })
    }

    /// The value of the record.
    fn value(&self) -> String {
        let issuer = self.issuers.first().map_or("", String::as_str);
        format!("{issuer}; accounturi={}; policy=wildcard", self.account)
    }

    /// The line of a zone file that makes the record.
    pub fn line(&self) -> String {
        let value = self.value();
        let strings: Vec<String> = value
            .as_bytes()
            .chunks(STRING_BYTES_MAX)
            .map(|part| format!("\"{}\"", part.escape_ascii()))
            .collect();
        format!("{}. {TTL_SECS} IN TXT {}", self.name, strings.join(" "))
    }

    /// Finds a record among `texts` that the CA will take at this time.
    ///
    /// # Errors
    /// The fault of the last one that is for this CA, or that there is none.
    pub fn find(&self, texts: &[String], now: SystemTime) -> Result<(), PersistentRecordFault> {
        let mut found = PersistentRecordFault::Missing;
        for text in texts {
            let mut parts = text.split(';').map(trimmed);
            if !parts.next().is_some_and(|issuer| self.issuers.iter().any(|ours| ours == issuer)) {
                continue;
            }
            match self.judge(parts, now) {
                Ok(()) => return Ok(()),
                Err(fault) => found = fault,
            }
        }
        Err(found)
    }

    fn judge<'t>(
        &self,
        parts: impl Iterator<Item = &'t str>,
        now: SystemTime,
    ) -> Result<(), PersistentRecordFault> {
        let malformed = |why: String| Err(PersistentRecordFault::Malformed(why));
        let (mut account, mut is_wildcard, mut until) = (None, false, None);
        let mut seen: Vec<String> = Vec::new();
        for part in parts {
            let Some((tag, value)) = part.split_once('=') else {
                return malformed(format!("\"{}\" is no TAG=VALUE", printable(part)));
            };
            // RFC 8659 section 4.1: tags are compared without case.
            let (tag, value) = (trimmed(tag).to_ascii_lowercase(), trimmed(value));
            if tag.is_empty() || !value.bytes().all(is_of_value) {
                return malformed(format!("\"{}\" is no TAG=VALUE", printable(part)));
            }
            if seen.contains(&tag) {
                return malformed(format!("it has `{}` twice", printable(&tag)));
            }
            match &*tag {
                "accounturi" => account = Some(value),
                "policy" => is_wildcard = value.eq_ignore_ascii_case("wildcard"),
                "persistuntil" => match value.parse::<i64>() {
                    Ok(secs) => until = Some(secs),
                    Err(_) => return malformed(format!("persistUntil={value} is no UNIX time")),
                },
                // It must be ignored.
                _ => {}
            }
            seen.push(tag);
        }
        match account {
            None => return malformed("it has no accounturi".into()),
            Some(other) if other != self.account => {
                return Err(PersistentRecordFault::OtherAccount(other.to_owned()));
            }
            Some(_) => {}
        }
        if !is_wildcard {
            return Err(PersistentRecordFault::NoWildcard);
        }
        match until {
            Some(secs) if is_over(secs, now) => Err(PersistentRecordFault::Over(secs)),
            _ => Ok(()),
        }
    }
}

/// A domain name in the one form that records have: small letters, no dot at its end.
pub fn is_issuer(name: &str) -> bool {
    let is_of_name = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    (1..=253).contains(&name.len()) && !name.ends_with('.') && name.bytes().all(is_of_name)
}

/// A text of the network for a line that a terminal shows: only printable ASCII.
pub fn printable(text: &str) -> impl fmt::Display {
    text.escape_default()
}

/// RFC 8659 section 4.2: what a value is made of.
fn is_of_value(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b';'
}

fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

fn is_over(secs: i64, now: SystemTime) -> bool {
    let Ok(secs) = u64::try_from(secs) else { return true };
    let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs));
    end.is_some_and(|end| end < now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const ACCOUNT: &str = "https://ca.test/acct/123";

    fn record() -> PersistentRecord {
        PersistentRecord::new("app.test", &["ca.test".into(), "other.test".into()], ACCOUNT)
            .unwrap()
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)
    }

    fn found(texts: &[&str]) -> Result<(), PersistentRecordFault> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        record().find(&texts, now())
    }

    #[test]
    fn the_printed_record_is_found() {
        assert_eq!(
            record().line(),
            "_validation-persist.app.test. 3600 IN TXT \
             \"ca.test; accounturi=https://ca.test/acct/123; policy=wildcard\""
        );
        assert_eq!(record().find(&[record().value()], now()), Ok(()));
        let long = format!("https://ca.test/{}", "a".repeat(300));
        let long = PersistentRecord::new("app.test", &["ca.test".into()], &long).unwrap();
        let line = long.line();
        let strings: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        assert_eq!(strings.iter().map(|part| part.len()).max(), Some(255), "{line}");
        assert_eq!(long.find(&[strings.concat()], now()), Ok(()));
    }

    #[test]
    fn a_record_is_taken_as_a_ca_takes_it() {
        for good in [
            "ca.test;accounturi=https://ca.test/acct/123;policy=wildcard",
            "\t other.test ; ACCOUNTURI = https://ca.test/acct/123 ; Policy = WildCard ",
            "ca.test;accounturi=https://ca.test/acct/123;policy=wildcard;persistUntil=1000",
            "ca.test;policy=wildcard;later=x;accounturi=https://ca.test/acct/123",
        ] {
            assert_eq!(found(&[good]), Ok(()), "{good}");
            assert_eq!(found(&["v=spf1", "ca.test;x", good]), Ok(()), "one of several");
        }
        let of_account = |more: &str| format!("ca.test;accounturi={ACCOUNT}{more}");
        for (text, fault) in [
            (String::new(), "it is missing"),
            ("ca.example;policy=wildcard".into(), "it is missing"),
            ("CA.TEST;policy=wildcard".into(), "it is missing"),
            ("ca.test;policy=wildcard".into(), "it is malformed: it has no accounturi"),
            (of_account(""), "it lacks `policy=wildcard`"),
            (of_account(";policy=all"), "it lacks `policy=wildcard`"),
            (of_account(";policy=wildcard;"), "it is malformed: \"\" is no TAG=VALUE"),
            (of_account(";policy=a b"), "it is malformed: \"policy=a b\" is no TAG=VALUE"),
            (of_account(";policy=x;Policy=y"), "it is malformed: it has `policy` twice"),
            (of_account(";policy=wildcard;persistUntil=999"), "its persistUntil=999 is over"),
            (of_account(";policy=wildcard;persistUntil=-1"), "its persistUntil=-1 is over"),
            (
                of_account(";policy=wildcard;persistUntil=soon"),
                "it is malformed: persistUntil=soon is no UNIX time",
            ),
            (
                "ca.test;accounturi=https://ca.test/acct/9;policy=wildcard".into(),
                "it is for another account, https://ca.test/acct/9",
            ),
        ] {
            let heard = found(&[&text]).unwrap_err().to_string();
            assert_eq!(heard, fault, "{text}");
        }
    }

    #[test]
    fn a_record_names_an_issuer_and_an_account() {
        for (issuers, account) in
            [(vec![], ACCOUNT), (vec!["ca.test".to_owned()], "https://ca.test/1;2")]
        {
            assert!(PersistentRecord::new("app.test", &issuers, account).is_err(), "{account}");
        }
        for (name, good) in
            [("ca.test", true), ("CA.test", false), ("ca.test.", false), ("a\"b", false)]
        {
            assert_eq!(is_issuer(name), good, "{name}");
        }
    }

    proptest! {
        /// A fault stands in a comment of a zone file, which a line's end would end.
        #[test]
        fn a_fault_is_printable_and_has_one_line(
            parts in proptest::collection::vec("\\PC{0,9}[=\n\r\x1b\u{202e}\u{85}a]{0,4}", 0..5),
        ) {
            let text = format!("ca.test;{}", parts.join(";"));
            let fault = found(&[&text]).unwrap_err().to_string();
            prop_assert!(fault.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{fault:?}");
        }

        /// Records come from the network. Whatever they say, one that is taken has our account.
        #[test]
        fn only_a_record_of_the_account_is_taken(
            text in "(ca\\.test)?[; =\\ta-zA-Z0-9:/.\\PC]{0,80}"
        ) {
            if record().find(std::slice::from_ref(&text), now()).is_ok() {
                prop_assert!(text.contains(ACCOUNT), "{text}");
            }
        }
    }
}
