//! The authority of one run of a sandbox: its key is made for the run, and is never written.

use std::time::{Duration, SystemTime};

use eyelet_config::RunAuthority;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints,
};

use crate::authority::{BACKDATED, id, library, serial};
use crate::{LeafKey, LocalCaError};

/// The time for which it is valid: longer than a run.
const LIFETIME: Duration = Duration::from_hours(365 * 24);

/// Makes an authority. It may sign these names, all below them, and no address (RFC 5280 section
/// 4.2.1.10). `None`: any name.
///
/// # Errors
/// [`LocalCaError::Library`].
pub fn run_authority(names: Option<&[String]>) -> Result<RunAuthority, LocalCaError> {
    let key = LeafKey::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Eyelet sandbox {}", id(&key)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = names.map(constraints);
    params.serial_number = Some(serial()?);
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + LIFETIME).into();
    let certificate = params.self_signed(&key).map_err(library)?;
    let (pem, certificate) = (certificate.pem(), certificate.der().clone());
    Ok(RunAuthority { certificate, pem, key: key.der() })
}

fn constraints(names: &[String]) -> NameConstraints {
    let all = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])];
    NameConstraints {
        permitted_subtrees: names.iter().cloned().map(GeneralSubtree::DnsName).collect(),
        excluded_subtrees: all.map(GeneralSubtree::IpAddress).into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use rcgen::{Issuer, KeyPair};

    use super::*;
    use crate::tests::has_openssl;

    /// Returns what openssl says of a certificate for this name, which whoever has the key of an
    /// authority for `a.example` has signed.
    fn verified(name: &str) -> String {
        let run = run_authority(Some(&["a.example".to_owned()])).unwrap();
        let stolen = LeafKey::parse(&run.key).unwrap();
        let issuer = Issuer::from_ca_cert_der(&run.certificate, stolen).unwrap();
        let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let [ca, file] = ["ca.pem", "leaf.pem"].map(|name| folder.path().join(name));
        std::fs::write(&ca, &run.pem).unwrap();
        std::fs::write(&file, leaf.pem()).unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-no_check_time", "-CAfile"]).args([ca, file]);
        let said = openssl.output().unwrap();
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    }

    #[test]
    fn a_client_takes_no_other_name_from_it() {
        if !has_openssl("a_client_takes_no_other_name_from_it") {
            return;
        }
        for name in ["a.example", "x.a.example"] {
            let said = verified(name);
            assert!(said.contains("leaf.pem: OK"), "{name}: {said}");
        }
        for name in ["b.example", "example", "ba.example", "192.0.2.1", "2001:db8::1"] {
            let said = verified(name);
            assert!(said.contains("subtree violation"), "{name}: {said}");
        }
    }
}
