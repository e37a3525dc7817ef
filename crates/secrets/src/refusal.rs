//! The reasons why a request with a placeholder, or a response with a value, does not pass.

use std::fmt;

use http::Method;
use http::header::HeaderName;

use crate::terms::Placeholder;

/// A request that has a placeholder where no value may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRefusal {
    /// The placeholder.
    pub placeholder: Placeholder,
    /// The misuse of it.
    pub misuse: Misuse,
}

/// The misuse of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// It stands in a field that `headers` does not list.
    Field(HeaderName),
    /// The fields would become too long.
    Length,
    /// `methods` does not list the method.
    Method(Method),
    /// `names` does not list the host that is asked, or the name that the upstream has proved.
    Name(Box<str>),
    /// The upstream has proved no name: it has no TLS.
    NoTls,
    /// It stands in the credentials for the proxy.
    Proxy,
    /// It stands in a field behind the body.
    Trailer,
    /// It stands twice in a field.
    Twice,
    /// It stands in the URL, or the host.
    Url,
}

impl fmt::Display for SecretRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { placeholder, misuse } = self;
        write!(f, "{placeholder} may not stand ")?;
        match misuse {
            Misuse::Field(name) => write!(f, "in the field {name}"),
            Misuse::Length => f.write_str("so often: the fields would be too long"),
            Misuse::Method(method) => write!(f, "in a request with {method}"),
            Misuse::Name(name) => write!(f, "in a request to {name}"),
            Misuse::NoTls => f.write_str("in a request to a server without TLS"),
            Misuse::Proxy => f.write_str("in credentials for a proxy"),
            Misuse::Trailer => f.write_str("behind the body"),
            Misuse::Twice => f.write_str("twice in a field"),
            Misuse::Url => f.write_str("in a URL"),
        }
    }
}

/// A response that shows a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// The placeholder of the value.
    pub placeholder: Placeholder,
    /// The field that has it. `None`: it is in a field's name.
    pub field: Option<Box<str>>,
}

impl fmt::Display for Reflection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "the field {field} shows the value of {}", self.placeholder),
            None => write!(f, "a field's name shows the value of {}", self.placeholder),
        }
    }
}
